#pragma once
#include <memory>
#include <span>

#include "comm/comm.h"
#include "group/file_states.h"
#include "zeroshard/engine.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// What the swap files of this rank are made with. All outlive the files.
struct SwapContext {
  std::span<const UnitLayout> units;
  std::span<const UnitPlacement> placements;
  const EngineOptions& options;
  const PlanOptions& plan;
  Comm& comm;
  Ledger& ledger;
};

// The swap files of this rank's optimizer states, and those of its parameters; null where none are in files. Collective
// over the communicator: where a rank cannot have them, every rank throws ConfigError with rank, directory and reason.
// `on_failure`: see SwapSpace.
std::unique_ptr<SwapSpace> make_swap_files(const SwapContext& context, SwapSpace::OnFailure on_failure);
std::unique_ptr<SwapSpace> make_parameter_files(const SwapContext& context, SwapSpace::OnFailure on_failure);

}  // namespace zeroshard
