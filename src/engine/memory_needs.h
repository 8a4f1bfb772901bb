#pragma once
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/device_memory.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns the origin of each unit, as if its tensors were on the engine's device. The origin of a unit with
// UnitDefinition::values has no device bytes, because each rank reads the values itself.
std::vector<UnitOrigin> origins_on_device(const std::vector<UnitDefinition>& units);

// Returns the end of an out-of-memory message, ": each rank needs ... bytes". The text names the bytes that a rank
// needs for the model (`planned`), the model's largest parameter, and ways to need less. `init_peak` is the number of
// bytes that the device needs at most while the engine is built; 0 on the CPU. The text names it only if it is larger.
std::string memory_needs(const std::vector<UnitLayout>& layouts, const Bytes& planned, int64_t init_peak);

}  // namespace zeroshard
