#pragma once
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/device_memory.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// As if all tensors of the units lay on the engine's device, but for those whose values are read from elsewhere.
std::vector<UnitOrigin> origins_on_device(const std::vector<UnitDefinition>& units);

// ": each rank needs ... bytes": what a rank holds of a model, `planned`, and its largest parameter, for the error that
// there is no memory for it. `init_peak`: the most while the engine is built on a device; 0 on the CPU.
std::string memory_needs(const std::vector<UnitLayout>& layouts, const Bytes& planned, int64_t init_peak);

}  // namespace zeroshard
