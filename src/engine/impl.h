#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "checkpoint/async_saver.h"
#include "checkpoint/device_copies.h"
#include "checkpoint/manifest.h"
#include "engine/consensus.h"
#include "engine/engine_plan.h"
#include "engine/executor.h"
#include "engine/gradient_stand_ins.h"
#include "engine/held_values.h"
#include "engine/memory.h"
#include "engine/ranks.h"
#include "engine/step_progress.h"
#include "engine/write_watch.h"
#include "group/gradient_fetch.h"
#include "hooks/autograd_hooks.h"
#include "optim/delayed_update.h"
#include "optim/matrix_update.h"
#include "optim/sharded_optimizer.h"
#include "precision/loss_scaler.h"
#include "reduce/reducer.h"
#include "zeroshard/engine.h"
#include "zeroshard/error.h"

namespace zeroshard {

// Identifies the weights of a parameter or a state of its optimizer by the names that checkpoints use.
struct StateKey {
  std::string name, kind;
  auto operator<=>(const StateKey&) const = default;
};

// The parts of an engine. They are destroyed in reverse order of declaration. engine_build.cpp builds them.
struct Engine::Impl {
  Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce, Comm* checkpoint);

  void make_units(const std::vector<UnitDefinition>& units);
  void make_reducer();
  void install_hooks(const std::vector<UnitDefinition>& units);
  void renew_hooks(size_t unit) const;
  const GradBucket& bucket_of(const ShardedGroup& group) const { return reducer->buckets()[group.number()]; }
  void report_skip(double scale);
  uint32_t hash_of_step(const std::vector<ParamGroupOptions>& groups) const;
  void check_step(const std::vector<ParamGroupOptions>& groups);
  // Returns the first parameter with a gradient in param.grad, or "". Only a user can have set it there, because
  // gradients of backward passes are taken out of param.grad.
  std::string assigned_gradient() const;
  void drop_assigned_gradients();
  // Drops the gradients that users have removed (param.grad = None) since show_gradients(), before new ones arrive.
  void take_dropped();
  void hide_gradients();  // also drops removed gradients; called before a backward pass
  void show_gradients();
  // Runs the code of an autograd hook for a unit. Keeps the text of an error, because autograd loses its class.
  template <typename Call>
  void in_hook(std::string_view doing, size_t unit, const Call& call);
  void pre_backward(size_t unit, int64_t output, int64_t publishes_at_forward);
  void before_gradient();
  void add_gradient(size_t unit, size_t param, const at::Tensor& grad);
  void end_unit_of_backward(size_t unit);
  // Throws `error`. If ranks disagree, adds what this rank was `doing` and the likely cause.
  [[noreturn]] void explain_backward(const CommError& error, const std::string& doing);
  std::string end_pass(const std::string& failure);
  // Second half of end_pass(): runs after every unit's backward has ended.
  std::string end_reductions(const std::string& failure);
  // Begin and end the pass of a loss.backward() that the engine did not begin, at its first gradient and at its end.
  void begin_plain_pass();
  void end_plain_pass();
  // If the last pass has failed, discards its gradients and all earlier ones of the step on all ranks; collective then.
  void discard_failed_pass();
  // Like end_reductions(), for gradients that came outside of a pass. Throws StateError if they were discarded.
  void end_launched();
  void discard();
  void compare_replicas();
  // Lets `update` write each trained group, then sends the new values to all ranks. Collective.
  using Update = std::function<void(ShardedGroup&)>;
  void refresh(const Update& update);
  // Starts to prefetch the states that the update needs, then updates each group.
  void update_all(const Update& update);
  // Tells autograd's version counters that these parameters were updated.
  void tell_autograd_of_update();
  // Ends a step. `apply` writes the new parameters, unless the step is skipped.
  void finish_step(const StepResult& result, const std::function<void()>& apply);
  // Note [Delayed updates]
  // With zeroshard.offload.delayed_update, a step hands its update to a thread, and publishes the update of the step
  // before. Until then states and parameters belong to different steps. Code that reads states waits for the thread.
  // Code that saves, exports, loads or lets users write to parameters publishes first. Code that reads parameters sees
  // those that the device computes with.
  void begin_delayed(const std::vector<ParamGroupOptions>& groups);
  // Remembers the current parameters, so that wrote_late() can find later writes of users.
  void remember_open_parameters();
  static void remember_open_parameters(ShardedGroup& group);
  // Sends the pending update, if there is one, to all ranks. It overwrites writes of users. Collective.
  void publish_update();
  void publish_outside_of_steps();
  // Publishes, and ignores what users have written since the last step.
  void publish_before_load(bool has_gradients);
  // Throws for a backward if an update was published outside of a step after its forward.
  [[noreturn]] static void refuse_other_parameters();
  // Returns whether the user has written to parameters that the pending update will overwrite.
  bool wrote_late();
  // Throws StateError on all ranks if wrote_late() is true on some rank. The error is thrown once, and then the writes
  // are lost. Collective.
  void check_late_writes();
  void await_update() const;
  bool has_pending_update() const { return delayed && delayed->is_pending(); }
  void take_writes(bool written_somewhere);
  // Selects master weights. kAllButSaved leaves out whole 32-bit parameters, because a background save reads the
  // parameters instead.
  enum class OfMaster : uint8_t { kNone, kInMemory, kAllButSaved, kAll };
  void take_all_writes(OfMaster of_master = OfMaster::kAll);
  void take_writes_to_groups(OfMaster of_master = OfMaster::kAll);
  void check_writes();
  void drop_writes_to_shards(const std::vector<int64_t>& written);
  void check_write(size_t unit, size_t param, int64_t how) const;
  std::string refused_memory(size_t unit, size_t param) const;
  std::string take_moved(const std::vector<size_t>& units, int root);
  // Returns the group that has the trained parameter, and its index in the group. Throws ValueError for an unknown
  // name.
  std::pair<ShardedGroup*, size_t> find_trained(const std::string& name) const;
  // Starts to prefetch the states and parameters that the update of this step needs.
  void announce_update();
  // Starts to prefetch the gradients for the update, if they have to be fetched.
  void announce_gradients();
  // Starts to read the earlier gradients of the step from files, because this backward adds to them.
  void read_gradients_ahead();
  // Called while an update waits for a save that still reads the states. Throws if the update must stop waiting.
  void while_a_save_reads();
  // Called while something waits for the thread of a delayed update.
  void while_an_update_goes_on();
  // Frees everything that only training needs. After that, the engine can only return units.
  void retire();

  // engine_checkpoint.cpp
  class States;
  AsyncSaver& saver();
  // Returns null on the CPU.
  DeviceCopies* device_copies();
  // Plans this many bytes of host memory for copies of checkpoints.
  void plan_staging(int64_t bytes);
  bool has_room_for_staging(int64_t bytes);
  // Returns whether saves need staging memory. Without it they write the state directly from its place.
  bool must_stage() const { return !options.device.is_cpu() && !memory->has_files(); }
  void wait_for_turn(std::string_view call);
  bool report_failed_save();
  void tell_failed_save(const std::exception& error) const;
  // Throws StateError after retire(), and after a load that failed half way and left a mixture of two states.
  void check_whole() const;
  // Throws StateError while gradients are being reduced: within a backward pass, and after a loss.backward() that
  // failed.
  void check_reduced(const ParamSpec& param) const;
  // Throws StateError if `call` would change parameters that are gathered to be modified.
  void check_no_change_begun(const char* call) const;
  std::vector<StateSlice> own_share(const std::vector<TensorState>& states) const;
  // `held`: the save reads states in files while training continues, and updates wait for these reads.
  SaveRequest make_request(const std::string& root, const std::string& tag, int64_t step,
                           const CheckpointContents& contents, const SaveOptions& save, bool held);
  std::vector<StateSlice> choose(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load,
                                 const ChooseTensors& others, std::set<StateKey>& chosen);
  void take_loaded(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load);

  EngineOptions options;
  Ranks ranks;
  EnginePlan plan;
  std::unique_ptr<Memory> memory;
  ShardedOptimizer optimizer;
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<GradientFetch> gradient_fetch;  // null if the update finds gradients in its own memory
  std::unique_ptr<MatrixUpdate> matrices;         // null if the optimizer needs no whole matrices
  std::unique_ptr<DelayedUpdate> delayed;         // null if a step updates at once
  int64_t publishes = 0;                          // number of delayed updates published outside of steps
  bool has_lent_shards = false;                   // a caller may write to shards: see local_param()
  bool has_lost_sums = false;  // an earlier write to parameters made checksums invalid: see set_weights()
  std::unique_ptr<Executor> executor;
  std::unique_ptr<WriteWatch> watch;
  std::unique_ptr<HeldValues> held;
  std::vector<std::vector<GradHook>> hooks;  // index: unit
  GradientStandIns stand_ins;                // stand-ins of the parameters that were trainable when the engine was made
  BackwardHooks backward_hooks;
  LossScaler scaler;
  StepProgress progress;
  // Note [Backward passes that are none of the engine's]
  // torch.autograd.grad() of a loss for an input runs the hooks of units, and gives none of their parameters a
  // gradient. It must launch nothing, because gradients that were already reduced for the step would be summed again,
  // and because other ranks may not run such a pass. Only the first gradient shows that a pass is a loss.backward(). So
  // this list keeps the units that have ended before the first gradient, and their ends count when it arrives. If units
  // are sharded, ends count at once, because other ranks may wait for them. Every rank then runs the pass, because the
  // pass gathers, and the step ends it.
  std::vector<size_t> ended_before_gradients;
  bool has_other_pass = false;   // a pass without gradients has counted its ends
  int64_t uncompared_steps = 0;  // steps since replicas were last compared; scripts may set Progress::global_steps
  bool warned_of_discards = false;
  std::weak_ptr<void> plain_pass;    // alive during a loss.backward() that begin_plain_pass() has seen
  double plain_divisor = 1;          // divisor of the gradients of that pass
  int64_t passes = 0;                // passes of this step
  std::vector<std::string> dropped;  // parameters whose gradients take_dropped() has dropped in this step
  // Texts of the last CommError and IoError that a hook of this pass threw; "" if none.
  std::string backward_comm_error, backward_io_error;
  Consensus consensus;  // result for the step that is being applied
  float grad_scale = 1;
  // Note [Gradients after the step]
  // Every bucket keeps the memory of its reduced gradients for the whole run, and an update only reads it. So the
  // gradients of the last step can be read without a copy until new ones arrive. This member is their loss scale. It is
  // empty after the next forward pass has begun.
  std::optional<double> last_grad_scale;
  std::atomic<bool> stop_requested = false;
  std::shared_ptr<bool> in_use = std::make_shared<bool>(true);  // null after retire(); backward hooks check it
  DirectoryLocks save_locks;                                    // locks of directories that this engine has saved to
  std::unique_ptr<DeviceCopies> copies;     // copies for checkpoints; null on the CPU and before the first one
  int64_t staging_planned = 0;              // bytes that the last save planned for async_saver
  std::unique_ptr<AsyncSaver> async_saver;  // null before the first save; declared after the members that it uses
  // The states that a failed load has begun to overwrite, each with the checkpoint, until a load of them succeeds.
  std::map<StateKey, std::string> half_loaded;
};

}  // namespace zeroshard
