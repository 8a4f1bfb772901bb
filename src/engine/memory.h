#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "activations/activation_keeper.h"
#include "device/flat_buffer.h"
#include "engine/engine_plan.h"
#include "engine/executor.h"
#include "group/groups.h"
#include "store/swap_space.h"

namespace zeroshard {

// Owns the groups of an engine, all swap files (also those of gradients), the store of kept activations, and the ring
// of gathered units. The reducer owns the memory of gradients.
struct Memory {
  // Creates the files, and on the CPU the groups. On a device, make_executor() adds the groups unit by unit. In both
  // cases make_executor() adds the slots of the gather ring. `options`, `plan` and `ranks` must outlive the object. An
  // update calls `while_a_save_reads` while it waits for a save that reads the states. If a read or write of a file
  // fails later, the collectives of all ranks fail (Ranks::fail_all()). Collective.
  Memory(const std::vector<UnitDefinition>& units, const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
         std::function<void()> while_a_save_reads);

  bool has_files() const { return states_in_files || parameters_in_files; }
  // Starts to read parameters from files before they are gathered, as far as there are buffers. `units` will be needed
  // next, nearest first. The function looks only at the first kLookAhead of them, and reads only for those that are
  // sharded now. `parameters_in_files` must not be null.
  void read_parameters_ahead(std::span<const size_t> units, Executor& executor);
  // Frees the optimizer states, the swap files of states and gradients, and the store of activations. Afterwards the
  // parameters can still be gathered.
  void free_states();

  std::unique_ptr<SwapSpace> states_in_files, parameters_in_files, gradients_in_files;  // null if none are in files
  std::unique_ptr<ActivationKeeper> activations;  // null if activations stay on the device
  std::unique_ptr<Groups> groups;
  std::unique_ptr<CodedRefresh> coded_refresh;  // null if updated parameters are not sent as 8-bit codes
  std::unique_ptr<SlotRing> gather_ring;
  // This is the last member, so that its stream is joined before the other members free memory that the stream uses.
  GatherStream gathers;
};

}  // namespace zeroshard
