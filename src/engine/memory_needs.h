#pragma once
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/device_memory.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns the origin of each unit, as if its tensors were on the engine's device. A unit with UnitDefinition::values is
// different: its origin has no device bytes, and each rank reads the values itself.
std::vector<UnitOrigin> origins_on_device(const std::vector<UnitDefinition>& units);

// Returns ": each rank needs ... bytes" for an out-of-memory error: the bytes of a model that a rank holds (`planned`)
// and its largest parameter. `init_peak` is the peak while the engine is built on a device; 0 on the CPU.
std::string memory_needs(const std::vector<UnitLayout>& layouts, const Bytes& planned, int64_t init_peak);

}  // namespace zeroshard
