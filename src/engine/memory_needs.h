#pragma once
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/device_memory.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns origins as if all tensors of the units were on the engine's device, except tensors whose values are read from
// elsewhere.
std::vector<UnitOrigin> origins_on_device(const std::vector<UnitDefinition>& units);

// Returns ": each rank needs ... bytes" for an out-of-memory error: the bytes of a model that a rank holds (`planned`)
// and its largest parameter. `init_peak` is the peak while the engine is built on a device; 0 on the CPU.
std::string memory_needs(const std::vector<UnitLayout>& layouts, const Bytes& planned, int64_t init_peak);

}  // namespace zeroshard
