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

// The memory of an engine, except the buckets of its gradients: the groups, all swap files (also those of gradients),
// the store of kept activations, and the ring of gathered units.
struct Memory {
  // Creates the files, and on the CPU the groups. On a device, make_executor() adds the groups unit by unit. The ring
  // has no slots yet. `options`, `plan` and `ranks` must outlive the object. An update calls `while_a_save_reads` while
  // it waits for a save that reads the states. If a read or write of a file fails later, the collectives of all ranks
  // fail (Ranks::fail_all()). Collective.
  Memory(const std::vector<UnitDefinition>& units, const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
         std::function<void()> while_a_save_reads);

  bool has_files() const { return states_in_files || parameters_in_files; }
  // Starts to read from files the parameters of units that will be gathered next, as far as there are buffers. `units`
  // are these units, nearest first. Only the first kLookAhead of them count, and of these only the sharded ones. There
  // must be parameters in files.
  void read_parameters_ahead(std::span<const size_t> units, Executor& executor);
  // Frees the optimizer states, the swap files of states and gradients, and the store of activations. Afterwards the
  // parameters can still be gathered.
  void free_states();

  std::unique_ptr<SwapSpace> states_in_files, parameters_in_files, gradients_in_files;  // null if none are in files
  std::unique_ptr<ActivationKeeper> activations;  // null if activations stay on the device
  std::unique_ptr<Groups> groups;
  std::unique_ptr<CodedRefresh> coded_refresh;  // null if updated parameters do not travel in 8 bits
  std::unique_ptr<SlotRing> gather_ring;
  // This is the last member, so that its stream is joined before the other members free memory that the stream uses.
  GatherStream gathers;
};

}  // namespace zeroshard
