#pragma once
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/device_memory.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns for each unit where its tensors are before the engine is built (UnitOrigin). Assumes that they are on the
// engine's device. A unit with UnitDefinition::values has no device bytes, because each rank reads the values itself.
std::vector<UnitOrigin> origins_on_device(const std::vector<UnitDefinition>& units);

// Returns the end of an out-of-memory message, ": each rank needs ... bytes". The text names the bytes that a rank
// needs for the model (`planned`), the model's largest parameter, and ways to need less. `init_peak` is
// EnginePlan::init_peak. The text names it only if it is larger than the device bytes of `planned`.
std::string memory_needs_text(const std::vector<UnitLayout>& layouts, const Bytes& planned, int64_t init_peak);

}  // namespace zeroshard
