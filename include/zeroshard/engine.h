#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zeroshard/checkpoint.h"
#include "zeroshard/config.h"
#include "zeroshard/optimizer.h"
#include "zeroshard/progress.h"
#include "zeroshard/replica_comms.h"

namespace zeroshard {

class Comm;
class RankObserver;
class World;

using NamedValues = std::vector<std::pair<std::string, std::string>>;

// One parameter of a unit, before zeroshard owns it.
struct ParamDefinition {
  std::vector<std::string> names;  // all names of the parameter (several if it is tied); messages use the first
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = true;
  // Param group of the optimizer; -1: never updated (like a frozen parameter), and its gradient is dropped.
  int param_group = 0;
  // true: the elements are not numbers, for example 4-bit weights packed into a floating-point dtype. Training in 16
  // bits leaves such a parameter in its dtype.
  bool packed = false;
  bool keeps_fp32_moments = false;  // even if the moments of other parameters are stored in 8 bits
};

// Writes elements [begin, end) of a floating-point parameter, in row-major order, to `out` on the host as fp32. Each
// rank calls it for the elements that it keeps. It must give the same values on every rank.
using ParameterReader = std::function<void(const std::string& name, int64_t begin, int64_t end, float* out)>;

// Parameters that are gathered, reduced and freed together: normally one transformer block.
struct UnitDefinition {
  std::string name;
  std::vector<ParamDefinition> params;
  int parent = -1;  // index of the unit whose modules contain this unit's modules
  // Returns the tensors of each parameter (several tensors if it is tied by storage). The engine calls it once while it
  // is built, unit by unit, so that a model larger than one rank's memory can be created.
  std::function<std::vector<std::vector<at::Tensor>>()> tensors;
  ParameterReader values = {};  // if set, the tensors need no memory and their values come from here
};

// Throws ValueError if two parameters share elements without being the same tensor, because they would become two
// separate parameters. Tensors without memory, or with gaps in it, are not checked. Code that builds UnitDefinitions
// calls it.
void check_apart(const std::vector<std::pair<std::string, at::Tensor>>& params);

struct EngineOptions {
  Config config;
  at::Device device = at::kCPU;
  std::vector<ParamGroupOptions> param_groups;  // empty: one group, from config.optimizer
  OptimizerConfig::Type optimizer = OptimizerConfig::Type::kAdamW;
  std::string external_optimizer = {};  // class name of a user's torch.optim optimizer that updates slices()
  // Values besides the model that must be equal on every rank. Each list has a name for error messages
  // ("configuration"). They are compared before anything is allocated.
  std::vector<std::pair<std::string, NamedValues>> agreement;
  std::vector<std::pair<std::string, at::Tensor>> buffers;  // named buffers of the model, on `device`
  std::shared_ptr<RankObserver> observer = nullptr;         // is told about steps: World::observer(); may be null
  // Called with the reason when a backward fails on this rank, before the ranks discard it. Ends waits of other ranks
  // in communicators of the caller, such as those of a sequence group. May be empty.
  std::function<void(const std::string&)> on_failed_backward = {};
};

struct StepResult {
  bool applied = true;       // false: all ranks skipped the step because a gradient was not finite
  double grad_norm = 0;      // norm of the averaged gradients before clipping; not finite if skipped
  double loss_scale = 1;     // loss scale of this step's gradients
  bool stop = false;         // some rank has requested the end of the run; the same on all ranks
  bool save_failed = false;  // a background save has failed, see Engine::report_failed_save(); the same on all ranks
};

// The elements of one parameter in this rank's shard, for an external optimizer. `master` is fp32 and 1-D.
struct OptimizerSlice {
  std::string param;
  int param_group = 0;
  at::Tensor master;
  bool has_grad = false;  // valid between prepare_step() and finish_step()
  at::Tensor grad;        // fp32, unscaled and clipped; undefined without a gradient
  // The engine's moments of these elements, fp32 and 1-D. They are copies if the moments lie in files or are not fp32.
  std::vector<at::Tensor> moments;
  std::vector<int64_t> shape;  // shape of the whole parameter
  int64_t begin = 0;           // first element of the slice, in the parameter's row-major order
};

// Bytes of one rank by purpose and by place. The place is "device", "host" or "file".
struct MemoryLine {
  std::string category, tier;
  int64_t planned = 0, measured_peak = 0;
};

// A tensor that has left the device's memory until a backward pass needs it. It stays valid after the engine is
// destroyed. Any thread may use and destroy it. Destroying it frees its memory or its space in a file.
class KeptTensor {
 public:
  virtual ~KeptTensor() = default;
  // Returns a new tensor with the same values, shape and strides at every call. Throws IoError.
  virtual at::Tensor bring_back() = 0;
};

// Trains parameters whose states are sharded across ranks (ZeRO stages 0-3). Every rank calls the same methods in the
// same order. A front end calls pre_forward and post_forward around each unit's modules; unit() does both. After an
// exception the engine must not be used again, except after an exception in a backward pass: see fail_backward().
class Engine {
 public:
  // Takes over the parameters. Collective. The parameters and buffers get rank 0's values on every rank. `gather` and
  // `reduce` may be the same communicator; two communicators let ranks differ in how gathers and reductions interleave.
  // A separate thread uses `checkpoint`, which moves host memory; without it nothing can be saved or loaded. The engine
  // must be destroyed before the communicators. With `replication`, `gather` and `reduce` have only the ranks of this
  // replica, and `checkpoint` has all ranks. Throws ValueError on every rank if parameters or options differ among
  // ranks.
  Engine(std::vector<UnitDefinition> units, EngineOptions options, Comm& gather, Comm& reduce,
         Comm* checkpoint = nullptr, const ReplicaComms& replication = {});
  // Works like the constructor above, with the communicators of `world`, which the engine then owns.
  Engine(std::vector<UnitDefinition> units, EngineOptions options, std::unique_ptr<World> world);
  ~Engine();

  void begin_forward(bool training);
  void pre_forward(size_t unit);
  // `outputs` are the tensors that the unit's module returns. Returns true if one of them is a parameter of the unit or
  // a view of one. The unit then stays unsharded, and the caller must call post_forward again when its own forward
  // ends.
  bool post_forward(size_t unit, const std::vector<at::Tensor>& outputs);
  // Like post_forward, for a caller that is not inside another unit's forward. Throws StateError if post_forward would
  // have to be called again.
  void end_unit(size_t unit, const std::vector<at::Tensor>& outputs);
  // Returns whether the unit is unsharded because its backward pass is running.
  bool is_in_backward(size_t unit) const;
  // Runs `forward` (which returns a tensor) as the forward of a unit. For modules without hooks, as in C++.
  template <typename Forward>
  at::Tensor unit(size_t index, Forward&& forward) {
    pre_forward(index);
    at::Tensor output = std::forward<Forward>(forward)();
    end_unit(index, {output});
    return output;
  }

  // Moves a tensor that a backward pass will need to the tier zeroshard.offload.activations. The caller may then free
  // the tensor. The engine expects tensors back in reverse order of keep(). Returns null if the tensor stays in place
  // because the configuration says so, it is small, or its memory has gaps. Any thread may call it. Throws IoError;
  // after that the engine cannot be used.
  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor);
  // Returns whether the configuration lets keep() take tensors at all.
  bool keeps_tensors() const;

  // Returns loss * loss_scale / micro_batches. The default of micro_batches is progress().batch.accumulation.
  at::Tensor scale_loss(const at::Tensor& loss) const;
  at::Tensor scale_loss(const at::Tensor& loss, int64_t micro_batches) const;
  // Returns loss * loss_scale, for a caller that calls backward() itself and averages over micro-batches. If there is a
  // loss scale, each such loss must be scaled here first.
  at::Tensor scale(const at::Tensor& loss);
  // The caller calls begin_backward() before loss.backward() and end_backward() after it. If `sync` is false (no_sync),
  // the gradients are only added to this rank's own sum until the next pass with sync or the step. end_backward() is
  // collective, and so is the first begin_backward() with sync.
  void begin_backward(bool sync = true);
  void end_backward();
  // Calls begin_backward(), backward() of the scaled loss, and end_backward() for one micro-batch. The micro-batch ends
  // with the next call or with the step, unless the caller calls end_micro_batch() before.
  void backward(const at::Tensor& loss);
  // Replaces end_backward() on a rank whose loss.backward() threw. All ranks discard all gradients since the last step.
  // end_backward() throws StateError with `reason` on the other ranks. The step may then begin again: with the same
  // batches it gives the same bits as a step that never failed.
  void fail_backward(const std::string& reason) noexcept;
  // Returns the text of a CommError that a hook threw in the last backward pass, or "". For callers that get the
  // exception without its type, like Python.
  const std::string& backward_comm_error() const;
  // Returns the text of an IoError in the same way.
  const std::string& backward_io_error() const;
  // For an external optimizer that writes master weights between steps. The optimizer calls it before writing. It
  // returns when no other rank reads this rank's parameters any more.
  void await_readers_of_master_weights();
  // The optimizer calls it after writing. It copies the master weights to the parameters of all ranks. Collective.
  void publish_master_weights();
  // Discards all gradients since the last step. Their micro-batches do not count any more. Collective.
  void zero_grad();
  // Counts a finished micro-batch that does not end its step. step() counts the last micro-batch of a step.
  void end_micro_batch();

  // The progress of training. Values that the caller sets here count from then on.
  Progress& progress();
  const Progress& progress() const;
  // The progress without the micro-batches of the current step, because no checkpoint contains their gradients.
  Progress progress_at_last_step() const;
  // Calls Progress::restore(). Allowed only between steps.
  void restore_progress(const NamedCounts& saved, int64_t step);
  // From the next step on, each step takes as many micro-batches as needed for `samples` samples of all ranks together.
  // micro_steps becomes the count that it would have if all steps had had that size. Throws ValueError if no number of
  // micro-batches gives `samples`, or if gradients would be accumulated in 16 bits against the configuration. Throws
  // StateError within a step.
  void set_train_batch_size(int64_t samples);
  // Sets how many samples each of the caller's micro-batches has from now on.
  void set_micro_batch_size(int64_t samples);

  // Clips gradients, updates and publishes the parameters, and counts the step, if Progress::is_boundary() says that
  // the step ends. `groups` may differ from step to step (learning rates). Throws ValueError if they differ among
  // ranks.
  StepResult step(const std::vector<ParamGroupOptions>& groups);
  StepResult step();
  // The three parts of step(), for an external optimizer. If `applied` is true, the optimizer runs between slices() and
  // finish_step(). Ranks compare `groups` with one another; nothing else uses them.
  StepResult prepare_step(const std::vector<ParamGroupOptions>& groups = {});
  std::vector<OptimizerSlice> slices();
  void finish_step(const StepResult& result);
  // Sets how many updates an optimizer made to a parameter (given by its first name) before this engine existed. Every
  // rank makes the same call. set_moment() sets the matching states.
  void set_updates(const std::string& param, int64_t updates);
  // Sets one moment of the slice of a parameter that this rank updates. `slot` is its index in OptimizerSlice::moments.
  void set_moment(const std::string& param, size_t slot, const at::Tensor& values);

  // Returns this rank's slice of the optimizer state of one parameter, which is given by its unit and its position
  // there. The slice may be read and written between passes. Returns nothing for a parameter that no optimizer updates.
  // The slice has no gradient. It may be empty, and then it has no moments.
  std::optional<OptimizerSlice> slice(size_t unit, size_t param) const;
  // Returns all values of one state of a parameter, as fp32 in the parameter's shape. `kind` names the state. Each rank
  // that has a slice of the parameter passes its own values as `mine`. Returns nothing if no rank has values.
  // Collective, unless every rank keeps all states.
  std::optional<at::Tensor> full_state(size_t unit, size_t param, const std::optional<at::Tensor>& mine,
                                       const std::string& kind);
  // Returns a 1-D copy of the averaged gradient of this rank's shard, without loss scale and before clipping. The
  // gradient exists from the end of a backward pass until the next forward pass for training, so also after the step.
  std::optional<at::Tensor> local_grad(size_t unit, size_t param) const;
  // Returns the whole gradient in the parameter's shape; nothing if no rank has one. Collective.
  std::optional<at::Tensor> full_grad(size_t unit, size_t param);
  // Returns the 2-norm of each parameter's gradient by the parameter's first name, for all parameters that have a
  // full_grad(). Each rank sums its own part in fp64. All norms together take one collective.
  std::vector<std::pair<std::string, double>> grad_norms();
  // Set the elements of the gradient or of the weights that this rank keeps, starting from element `begin` of the
  // parameter. set_weights() also sets master weights. Every rank passes the same values, or the values of its own
  // slice. set_grad() throws StateError if there is no gradient that the next step would use.
  void set_grad(size_t unit, size_t param, int64_t begin, const at::Tensor& values);
  void set_weights(size_t unit, size_t param, int64_t begin, const at::Tensor& values);
  // Returns this rank's shard of a parameter at stage 3: 1-D memory of the engine in the parameter's dtype, on the host
  // or the device. The shard may be empty. Returns nothing if parameters lie in files. The caller may write to it
  // between passes: the next pass computes with the new values. If there are separate master weights, the next update
  // overwrites the shard.
  std::optional<at::Tensor> local_param(size_t unit, size_t param);
  // Returns the number of updates of each parameter that an optimizer updates, by the parameter's first name.
  NamedCounts updates() const;

  // Returns whether there are gradients that no step has used yet.
  bool has_pending_gradients() const;
  // Returns whether gradients have arrived without a begin_backward() since the last step. This happens if the caller
  // calls loss.backward() alone, and then nobody has scaled the loss.
  bool has_plain_gradients() const;

  static constexpr int kReadOnly = -1, kDropWrites = -2;
  // Unshards these units until release(), so that their parameters can be read. With `modify_rank` >= 0, release()
  // broadcasts that rank's values to every rank, including master weights. With kReadOnly, release() throws StateError
  // on a rank that has changed values of units gathered without `to_modify`. With kDropWrites, release() does not check
  // for changes. It restores the values of units gathered with `can_drop`, unless a step was taken meanwhile. To make
  // this possible, gather() copies units that are not sharded to the host. The default of `can_drop` is `to_modify`.
  void gather(const std::vector<size_t>& units, bool to_modify = false, std::optional<bool> can_drop = std::nullopt);
  void release(const std::vector<size_t>& units, int modify_rank = kReadOnly);

  // Saves the parameters, the optimizer's states and `contents` as the checkpoint root/tag. Any number of ranks can
  // load it at any stage. Collective, at a step boundary. With zeroshard.checkpoint.async the call returns after
  // copying the state, and a thread writes the files. The call then also throws the error of a previous background
  // save. Throws IoError or ValueError on every rank. Earlier checkpoints are never lost.
  void save_checkpoint(const std::string& root, const std::string& tag, int64_t step,
                       const CheckpointContents& contents = {}, const SaveOptions& save = {});
  // Waits for a pending save, and throws the error of that save. With zeroshard.checkpoint.on_error "warn" it logs the
  // error instead and returns false. Every call that has to wait for a save treats the save's error in this way.
  bool wait_for_checkpoint();
  // The caller calls it after a step with StepResult::save_failed, when it has counted the step, because the step was
  // applied. Throws the error of the save on every rank, or logs it with zeroshard.checkpoint.on_error "warn".
  void report_failed_save();
  // Waits for a pending save, then runs `step` on this rank. Collective: if `step` throws on any rank, every rank
  // throws the error of the first failing rank. ValueError and StateError keep their type; other errors become IoError.
  // `call` is the name of the user's call, for the message when other ranks call something else.
  void run_together(std::string_view call, const std::function<void()>& step);
  // Loads parameters and states from a checkpoint. Any number of ranks at any stage may have written it. `others`
  // provides memory for tensors that the engine does not manage. Collective. Returns nothing if there is no checkpoint
  // and no tag was given. Throws IoError if no checkpoint is whole, and ValueError if it belongs to another model. If
  // the load fails after it has overwritten a part of the state, passes, steps and saves throw StateError until a load
  // of that part succeeds.
  std::optional<LoadedState> load_checkpoint(
      const std::string& root, const LoadOptions& load = {},
      const ChooseTensors& others = [](const auto&) { return std::vector<TensorState>(); });

  // Returns the parameters that hold values of two checkpoints because a load failed half way: their first names, each
  // with the checkpoint that was partly read. return_unit() returns such parameters unchanged.
  NamedValues half_loaded() const;

  // Writes the unsharded model as one safetensors file, for transformers and others: the parameters in their own dtype,
  // and the `buffers` of rank 0. Needs memory for one unit. Tied parameters are written once. Collective.
  void save_weights(const std::string& directory, const std::string& name, bool exclude_frozen = false,
                    const std::vector<TensorState>& buffers = {});

  // Makes every rank see StepResult::stop at the next step. May be called from any thread and from signal handlers.
  void request_stop() noexcept;

  // Applies the pending update of the last step to the parameters, with zeroshard.offload.delayed_update. Saves,
  // exports and gather() for modifying do the same. Afterwards gradients of an earlier forward are refused. Does
  // nothing if no update is pending. Collective. If `ends` is true, training is over. Otherwise the call throws
  // StateError between the micro-batches of a step. If users have written to parameters since the last step, the call
  // throws StateError and the update is lost.
  void publish_update(bool ends = false);

  // Turns the parameters of a unit into ordinary tensors with their own memory, current values and dtype. The first
  // call frees the optimizer's states, an unpublished update and everything else that only training needs. After that,
  // the engine may only return its other units and be destroyed, and units that are not returned cannot be read any
  // more. Collective at stage 3. A module whose units were all returned may be given to another engine.
  void return_unit(size_t unit);

  double loss_scale() const;
  int skipped_in_a_row() const;
  const Config& config() const;
  std::vector<MemoryLine> memory() const;
  // Returns the bytes of freed CPU tensors that this process keeps for the next step. The process never keeps more than
  // its operators needed at one time.
  static int64_t kept_memory();
  size_t num_units() const;
  // Returns whether every rank keeps all of the unit's parameters, so that they are never gathered.
  bool is_replicated(size_t unit) const;

  // Returns for each tensor whether its values differ on any two ranks. Collective. Waits for a pending save first.
  std::vector<bool> differ_among_ranks(const std::vector<at::Tensor>& tensors);
  // The world that the engine owns; null if the communicators belong to the caller.
  World* world() { return world_.get(); }

 private:
  struct Impl;
  std::unique_ptr<World> world_;
  std::unique_ptr<Impl> impl_;  // destroyed before the world that it uses
};

}  // namespace zeroshard
