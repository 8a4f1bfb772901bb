#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/process_mark.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/device_copies.h"
#include "checkpoint/manifest.h"
#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "engine/activation_keeper.h"
#include "engine/consensus.h"
#include "engine/executor.h"
#include "engine/gradient_stand_ins.h"
#include "engine/held_values.h"
#include "engine/step_progress.h"
#include "engine/write_watch.h"
#include "group/gradient_fetch.h"
#include "group/groups.h"
#include "hooks/autograd_hooks.h"
#include "memory/ledger.h"
#include "optim/delayed_update.h"
#include "optim/matrix_update.h"
#include "optim/sharded_optimizer.h"
#include "plan/plan_ledger.h"
#include "precision/loss_scaler.h"
#include "reduce/reducer.h"
#include "store/swap_space.h"
#include "zeroshard/engine.h"
#include "zeroshard/error.h"

namespace zeroshard {

// A parameter's weights or a state of its optimizer, as checkpoints name them.
struct StateKey {
  std::string name, kind;
  auto operator<=>(const StateKey&) const = default;
};

// The parts of an engine, in the order in which they must be destroyed in reverse. Built in engine_build.cpp.
struct Engine::Impl {
  Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce, Comm* checkpoint);

  void make_groups(const std::vector<UnitDefinition>& units, const PlanReport& report);
  void make_units(const std::vector<UnitDefinition>& units);
  void make_reducer(const PlanReport& report);
  void install_hooks(const std::vector<UnitDefinition>& units);
  void renew_hooks(size_t unit) const;
  const GradBucket& bucket_of(const ShardedGroup& group) const { return reducer->buckets()[group.number()]; }
  // Throws StateError in a forked child of the rank, and in a handler of a signal that came while the engine waits.
  void check_caller() const;
  void report_skip(double scale);
  uint32_t hash_of_step(const std::vector<ParamGroupOptions>& groups) const;
  void check_step(const std::vector<ParamGroupOptions>& groups);
  // The first parameter whose tensor has a gradient, "" if none has: those of backward passes are taken from there.
  std::string assigned_gradient() const;
  void drop_assigned_gradients();
  // Drops the gradients that users have dropped (param.grad = None) since show_gradients(), before others come.
  void take_dropped();
  void hide_gradients();  // and drops those, before a backward pass
  void show_gradients();
  // What a hook of autograd does for a unit. Keeps the text of an error, whose class autograd loses.
  template <typename Call>
  void in_hook(std::string_view doing, size_t unit, const Call& call);
  void pre_backward(size_t unit, int64_t output, int64_t publishes_at_forward);
  void before_gradient();
  void add_gradient(size_t unit, size_t param, const at::Tensor& grad);
  void end_unit_of_backward(size_t unit);
  // Throws `error`; where ranks disagree, with what this rank was `doing` and what may be the cause.
  [[noreturn]] void explain_backward(const CommError& error, const std::string& doing);
  std::string end_pass(const std::string& failure);
  // Its part behind the ends of units.
  std::string end_reductions(const std::string& failure);
  // A loss.backward() that the engine did not begin: a pass from its first gradient to its end.
  void begin_plain_pass();
  void end_plain_pass();
  // If it has failed: discards it and what the step had before it, on all ranks. Collective then.
  void discard_failed_pass();
  // As end_reductions(), of gradients that came outside of a pass. Throws StateError where they were discarded.
  void end_launched();
  void discard();
  void compare_replicas();
  // Lets `update` write each trained group, and brings what it wrote to all ranks. Collective.
  using Update = std::function<void(ShardedGroup&)>;
  void refresh(const Update& update);
  // Tells states what the update of the step will ask for, before.
  void update_all(const Update& update);
  // Of the parameters that were updated.
  void tell_autograd_of_update();
  // `apply` brings the step to the parameters, unless it is skipped.
  void finish_step(const StepResult& result, const std::function<void()>& apply);
  // Note [Delayed updates]
  // With zeroshard.offload.delayed_update a step hands its update to a thread, and publishes that of the step before.
  // Until then states and parameters are of two steps: whoever looks at states awaits the thread; whoever saves,
  // exports, loads or lets users write to parameters publishes before; whoever reads parameters sees those that the
  // device computes with.
  void begin_delayed(const std::vector<ParamGroupOptions>& groups);
  // So that wrote_late() finds what users write from now on.
  void remember_open_parameters();
  static void remember_open_parameters(ShardedGroup& group);
  // Brings the update that is pending, if one is, to all ranks, whatever users have written. Collective.
  void publish_update();
  void publish_outside_of_steps();
  // What users have written since does not count.
  void publish_before_load(bool has_gradients);
  // Of a backward, where an update was published outside of a step since its forward.
  [[noreturn]] static void refuse_other_parameters();
  // Whether the user has written to parameters that the pending update will overwrite.
  bool wrote_late();
  // Throws StateError where that is so on some rank. It is told once: then the writes are lost. Collective.
  void check_late_writes();
  void await_update() const;
  bool has_pending_update() const { return delayed && delayed->is_pending(); }
  void take_writes(bool written_somewhere);
  // Which master weights; kAllButSaved: not those of whole 32-bit parameters that a save in the background reads
  // instead.
  enum class OfMaster : uint8_t { kNone, kInMemory, kAllButSaved, kAll };
  void take_all_writes(OfMaster of_master = OfMaster::kAll);
  void take_writes_to_groups(OfMaster of_master = OfMaster::kAll);
  void check_writes();
  void drop_writes_to_shards(const std::vector<int64_t>& written);
  void check_write(size_t unit, size_t param, int64_t how) const;
  std::string refused_memory(size_t unit, size_t param) const;
  std::string take_moved(const std::vector<size_t>& units, int root);
  // The group that has the trained parameter, and its number there. Throws ValueError for another name.
  std::pair<ShardedGroup*, size_t> find_trained(const std::string& name) const;
  // Tells states and parameters that are fetched what the update of this step will ask for.
  void announce_update();
  // Tells the same to what brings gradients from elsewhere, if anything does.
  void announce_gradients();
  // Begins to read what this backward's gradients are added to, where that lies in files.
  void read_gradients_ahead();
  // Begins to read the parameters of the units that are gathered next, as far as there are buffers for them.
  void read_parameters_ahead(std::span<const size_t> units);
  // The states are lost on this rank: collectives of the engine fail on every rank with this reason.
  void fail_on_all_ranks(const std::string& text) noexcept;
  // While an update waits for states that are not saved yet. Throws where it must not go on waiting.
  void while_a_save_reads();
  // While something waits for the thread of a late update.
  void while_an_update_goes_on();
  void check_while_waiting(std::string_view waited);
  // Frees what only training needs. From then on the engine can do nothing but return units.
  void retire();

  // engine_checkpoint.cpp
  class States;
  Comm& checkpoint_comm() const;
  AsyncSaver& saver();
  // Null on the CPU.
  DeviceCopies* device_copies();
  // The host will hold this much for copies of checkpoints.
  void plan_staging(int64_t bytes);
  bool has_room_for_staging(int64_t bytes);
  // Whether saves need staging memory: else they can write the state from where it lies.
  bool must_stage() const { return !options.device.is_cpu() && !swap && !parameter_swap; }
  void wait_for_turn(std::string_view call);
  bool report_failed_save();
  void tell_failed_save(const std::exception& error) const;
  // Throws StateError after retire(), and after a load that failed half way and left a mixture of two states.
  void check_whole() const;
  // Throws StateError while gradients are on their way: within a backward pass, and after a loss.backward() that
  // failed.
  void check_reduced(const ParamSpec& param) const;
  // Throws StateError while parameters are gathered to be modified, and `call` would give them other values.
  void check_no_change_begun(const char* call) const;
  std::vector<StateSlice> own_share(const std::vector<TensorState>& states) const;
  // `held`: what lies in files is read while training goes on, and updates wait for that.
  SaveRequest make_request(const std::string& root, const std::string& tag, int64_t step,
                           const CheckpointContents& contents, const SaveOptions& save, bool held);
  std::vector<StateSlice> choose(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load,
                                 const ChooseTensors& others, std::set<StateKey>& chosen);
  void take_loaded(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load);

  ProcessMark process;
  EngineOptions options;
  Comm& gather_comm;
  Comm& reduce_comm;
  Comm* checkpoint;  // null: no checkpoints
  Ledger ledger;
  PlanOptions plan;
  Bytes planned;
  std::vector<UnitPlacement> placements;  // by unit
  std::vector<UnitLayout> layouts;
  std::unique_ptr<SwapSpace> swap;                // of the groups' states; null where none are in files
  std::unique_ptr<SwapSpace> parameter_swap;      // of their parameters; also
  std::unique_ptr<SwapSpace> gradient_swap;       // of their reduced gradients; also
  std::unique_ptr<ActivationKeeper> activations;  // null where they stay on the device
  std::unique_ptr<Groups> groups;
  std::unique_ptr<SlotRing> gather_ring;
  ShardedOptimizer optimizer;
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<GradientFetch> gradient_fetch;  // null where gradients lie where they are updated with
  std::unique_ptr<MatrixUpdate> matrices;         // null without whole matrices
  std::unique_ptr<DelayedUpdate> delayed;         // null where a step updates at once
  int64_t publishes = 0;                          // of its updates outside of steps
  bool has_lent_shards = false;                   // to who may write to them: see local_param()
  bool has_lost_sums = false;                     // of parameters that were written before: see set_weights()
  std::unique_ptr<Executor> executor;
  std::unique_ptr<WriteWatch> watch;
  std::unique_ptr<HeldValues> held;
  std::vector<std::vector<GradHook>> hooks;  // by unit
  GradientStandIns stand_ins;                // of what was trainable when the engine was made
  BackwardHooks backward_hooks;
  LossScaler scaler;
  StepProgress progress;
  // Note [Backward passes that are none of the engine's]
  // torch.autograd.grad() of a loss to an input runs the hooks of units, and gives none of their parameters a gradient.
  // It must launch nothing: what is reduced for the step would be summed again, and other ranks may not have such a
  // pass. From a loss.backward() it differs by its first gradient. So these are the units that have ended before, whose
  // ends count once there is one. Where units are sharded ends count at once, as other ranks may wait for them; every
  // rank then has the pass, because it gathers, and the step ends it.
  std::vector<size_t> ended_before_gradients;
  bool has_other_pass = false;   // whose ends have counted
  int64_t uncompared_steps = 0;  // since replicas were last compared: scripts may set Progress::global_steps
  bool warned_of_discards = false;
  std::weak_ptr<void> plain_pass;    // alive while a loss.backward() that begin_plain_pass() has seen goes on
  double plain_divisor = 1;          // of its gradients
  int64_t passes = 0;                // of this step
  std::vector<std::string> dropped;  // the parameters whose gradients take_dropped() has dropped in this step
  // Of the last CommError, and IoError, that a hook of this pass threw; "" without one.
  std::string backward_comm_error, backward_io_error;
  Consensus consensus;  // of the step that is being applied
  float grad_scale = 1;
  // Note [Gradients after the step]
  // Reduced gradients lie in memory that every bucket keeps for the whole run, and an update only reads them. So until
  // the next gradients come, the last step's can be read without a copy. This is the loss scale that they carry; empty
  // once the next forward pass has begun.
  std::optional<double> last_grad_scale;
  std::atomic<bool> stop_requested = false;
  std::shared_ptr<bool> in_use = std::make_shared<bool>(true);  // null from retire() on; backward hooks ask for it
  DirectoryLocks save_locks;                                    // of what this engine has saved to
  std::unique_ptr<DeviceCopies> copies;                         // of checkpoints; null on the CPU, and before the first
  int64_t staging_planned = 0;                                  // of async_saver, by the last save
  std::unique_ptr<AsyncSaver> async_saver;                      // null before the first save; after what it uses
  GatherStream gathers;  // the last that uses memory of the device: joined before that goes
  // The parts that a failed load has begun to overwrite, and from which checkpoint, until a load of them succeeds.
  std::map<StateKey, std::string> half_loaded;
};

}  // namespace zeroshard
