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

// The memory of an engine, except that of its gradients: the groups with their files, and the ring of gathered units.
struct Memory {
  // Creates files and groups. `options`, `plan` and `ranks` must outlive it. An update calls `while_a_save_reads` while
  // it waits for a save that reads the states. If a file fails, so do all ranks. Collective.
  Memory(const std::vector<UnitDefinition>& units, const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
         std::function<void()> while_a_save_reads);

  bool has_files() const { return states_in_files || parameters_in_files; }
  // Starts to read the parameters of the units that are gathered next from files, as far as there are buffers.
  void read_parameters_ahead(std::span<const size_t> units, Executor& executor);
  // Frees all but the parameters.
  void free_states();

  std::unique_ptr<SwapSpace> states_in_files, parameters_in_files, gradients_in_files;  // null if none are in files
  std::unique_ptr<ActivationKeeper> activations;  // null if activations stay on the device
  std::unique_ptr<Groups> groups;
  std::unique_ptr<CodedRefresh> coded_refresh;  // null if parameters travel as they are
  std::unique_ptr<SlotRing> gather_ring;
  // This is the last member, so that its stream is joined before the other members free memory that the stream uses.
  GatherStream gathers;
};

}  // namespace zeroshard
