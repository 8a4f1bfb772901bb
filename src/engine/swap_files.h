#pragma once
#include <memory>
#include <span>

#include "comm/comm.h"
#include "group/file_states.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// The swap files of this rank's optimizer states; null where no states are in files. Collective over `comm`: where a
// rank cannot have them, every rank throws ConfigError with rank, directory and reason. `on_failure`: see SwapSpace.
std::unique_ptr<SwapSpace> make_swap_files(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                                           const EngineOptions& options, Comm& comm, Ledger& ledger,
                                           SwapSpace::OnFailure on_failure);

}  // namespace zeroshard
