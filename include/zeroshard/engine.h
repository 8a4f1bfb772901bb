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

namespace zeroshard {

class Comm;
class RankObserver;
class World;

using NamedValues = std::vector<std::pair<std::string, std::string>>;

// One parameter of a unit, before zeroshard owns it.
struct ParamDefinition {
  std::vector<std::string> names;  // every name a tied parameter is reached by; the first is used in messages
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = true;
  int param_group = 0;  // of the optimizer; -1: never updated, as if it were frozen; its gradient is dropped
  // The elements are no numbers, as those of 4-bit weights packed into a floating-point dtype, and training in 16 bits
  // leaves the parameter that dtype.
  bool packed = false;
};

// Elements [begin, end) of a floating-point parameter, in row-major order, written to `out` on the host as fp32. Each
// rank asks for what it keeps. Must give the same on every rank.
using ParameterReader = std::function<void(const std::string& name, int64_t begin, int64_t end, float* out)>;

// Parameters that are gathered, reduced and freed together: normally one transformer block.
struct UnitDefinition {
  std::string name;
  std::vector<ParamDefinition> params;
  int parent = -1;  // index of the unit whose modules contain this unit's modules
  // The tensors of each parameter (several when it is tied by storage), called once while the engine is built, so
  // that a model larger than one rank's memory can be made unit by unit.
  std::function<std::vector<std::vector<at::Tensor>>()> tensors;
  ParameterReader values = {};  // set: the tensors need no memory, and their values come from here
};

// For whoever finds units. Throws ValueError when two parameters have elements in common without being the same tensor:
// they would become two of their own. What has no memory, or gaps in it, is not looked at.
void check_apart(const std::vector<std::pair<std::string, at::Tensor>>& params);

struct EngineOptions {
  Config config;
  at::Device device = at::kCPU;
  std::vector<ParamGroupOptions> param_groups;  // empty: one group, from config.optimizer
  OptimizerConfig::Type optimizer = OptimizerConfig::Type::kAdamW;
  std::string external_optimizer = {};  // the class of a user's torch.optim that updates the master weights: slices()
  // Values besides the model that must be the same on every rank, each with its name in errors ("configuration"). They
  // are checked before anything is allocated.
  std::vector<std::pair<std::string, NamedValues>> agreement;
  std::vector<std::pair<std::string, at::Tensor>> buffers;  // of the model, by name: on `device`
  std::shared_ptr<RankObserver> observer = nullptr;         // hears of steps: World::observer(); null: nobody does
};

struct StepResult {
  bool applied = true;       // false: skipped on all ranks, because a gradient was not finite
  double grad_norm = 0;      // of the averaged gradients before clipping; not finite when skipped
  double loss_scale = 1;     // that the gradients of this step carried
  bool stop = false;         // some rank has asked for the run to end; the same on all ranks
  bool save_failed = false;  // a background save has failed, see Engine::report_failed_save(); the same on all ranks
};

// A stretch of one parameter in this rank's shard, for an optimizer outside: `master` is fp32, 1-D.
struct OptimizerSlice {
  std::string param;
  int param_group = 0;
  at::Tensor master;
  bool has_grad = false;            // valid between prepare_step() and finish_step()
  at::Tensor grad;                  // fp32, unscaled and clipped; undefined without a gradient
  std::vector<at::Tensor> moments;  // those that the engine keeps for it, fp32, 1-D; copies of what is in files or bf16
  std::vector<int64_t> shape;       // of the whole parameter
  int64_t begin = 0;                // of the stretch, in the parameter's row-major order
};

// Bytes of one rank, by purpose and by where they lie: "device", "host" or "file".
struct MemoryLine {
  std::string category, tier;
  int64_t planned = 0, measured_peak = 0;
};

// A tensor that has left the device's memory until it is needed again, whatever becomes of the engine meanwhile. Any
// thread may use it, and destroy it: what it lies in is then free for others.
class KeptTensor {
 public:
  virtual ~KeptTensor() = default;
  // A new tensor with the same values, shape and strides, each time. Throws IoError.
  virtual at::Tensor bring_back() = 0;
};

// Trains parameters whose states are sharded across ranks (ZeRO stages 0-3). Every rank calls the same methods in the
// same order. A front calls pre_forward and post_forward around each unit's modules; unit() does both. After an
// exception the engine must not be used further, but for one in a backward pass: see fail_backward().
class Engine {
 public:
  // Collective. Takes over the parameters: they and the buffers get rank 0's values on every rank. `gather` and
  // `reduce` may be the same communicator; two let ranks differ in the order in which gathers and reductions
  // interleave. `checkpoint` moves host memory and is used by a thread of its own; without it nothing can be saved or
  // loaded. All outlive the engine. Throws ValueError on every rank when parameters or options differ among ranks.
  Engine(std::vector<UnitDefinition> units, EngineOptions options, Comm& gather, Comm& reduce,
         Comm* checkpoint = nullptr);
  // The same over communicators of a world that the engine keeps.
  Engine(std::vector<UnitDefinition> units, EngineOptions options, std::unique_ptr<World> world);
  ~Engine();

  void begin_forward(bool training);
  void pre_forward(size_t unit);
  // `outputs`: the tensors that the unit's module returns. Returns whether one of them is a parameter of the unit or a
  // view of one. The unit then stays whole, and its forward lasts until the caller's own forward ends, when
  // post_forward must be called again.
  bool post_forward(size_t unit, const std::vector<at::Tensor>& outputs);
  // The same for a caller outside of all units' forwards: throws StateError if post_forward would have to be called
  // again.
  void end_unit(size_t unit, const std::vector<at::Tensor>& outputs);
  // Whether the unit is whole because its backward runs.
  bool is_in_backward(size_t unit) const;
  // Runs `forward` (returning a tensor) as the forward of a unit: for modules without hooks, as in C++.
  template <typename Forward>
  at::Tensor unit(size_t index, Forward&& forward) {
    pre_forward(index);
    at::Tensor output = std::forward<Forward>(forward)();
    end_unit(index, {output});
    return output;
  }

  // Takes a tensor, which a backward pass will need, where zeroshard.offload.activations says; its own memory is not
  // needed any more. What is kept last is expected back first. Null: the tensor stays where it is, because the
  // configuration says so, it is small, or its memory has gaps. Any thread may call it. Throws IoError; the engine
  // cannot be used after that.
  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor);
  // Whether keep() takes tensors at all.
  bool keeps_tensors() const;

  // loss * loss_scale / micro_batches, which are progress().batch.accumulation unless the caller says otherwise.
  at::Tensor scale_loss(const at::Tensor& loss) const;
  at::Tensor scale_loss(const at::Tensor& loss, int64_t micro_batches) const;
  // loss * loss_scale, for a loss whose backward() the caller calls, which averages over micro-batches. Where there is
  // a loss scale, each such loss passes here first.
  at::Tensor scale(const at::Tensor& loss);
  // Around loss.backward(). With sync false (no_sync) gradients only join this rank's own sum, until a pass with sync
  // or the step. Collective; so is the first begin_backward() with sync.
  void begin_backward(bool sync = true);
  void end_backward();
  // Both, and backward() of the scaled loss in between: of a micro-batch, which ends with the next call or the step
  // unless end_micro_batch() says so before.
  void backward(const at::Tensor& loss);
  // In place of end_backward() where loss.backward() threw on this rank. All gradients since the last step are
  // discarded on all ranks; those that did not fail throw StateError in end_backward(), with `reason`. The step may
  // then begin again: with the same batches it has the bits of one that did not fail.
  void fail_backward(const std::string& reason) noexcept;
  // The text of a CommError that left a hook in the last backward pass; "" without one. For callers that learn of it by
  // an exception without its type, as Python does.
  const std::string& backward_comm_error() const;
  // The same of an IoError.
  const std::string& backward_io_error() const;
  // For an optimizer outside that writes master weights between steps. Before it writes: returns when no other rank
  // reads this rank's parameters.
  void await_readers_of_master_weights();
  // Afterwards: brings them to the parameters of all ranks. Collective.
  void publish_master_weights();
  // Discards all gradients since the last step, whose micro-batches then count no more. Collective.
  void zero_grad();
  // Counts a micro-batch that is over and does not end its step. The step counts its last one.
  void end_micro_batch();

  // How far training has come. What is set there counts from then on.
  Progress& progress();
  const Progress& progress() const;
  // Without the micro-batches of the current step, whose gradients no checkpoint has.
  Progress progress_at_last_step() const;
  // See Progress::restore(); between steps.
  void restore_progress(const NamedCounts& saved, int64_t step);
  // From the next step on it takes as many micro-batches as make `samples` of all ranks; micro_steps become what they
  // were had all steps been of that size. Throws ValueError where no number of them does, or 16 bits would be summed in
  // that were not meant to be, StateError within a step.
  void set_train_batch_size(int64_t samples);
  // Says how many samples the caller's micro-batches have from now on.
  void set_micro_batch_size(int64_t samples);

  // Clips, updates and publishes the parameters, and counts the step, wherever Progress::is_boundary() says that it
  // ends. `groups` may differ from step to step (learning rates), but not from rank to rank: ValueError.
  StepResult step(const std::vector<ParamGroupOptions>& groups);
  StepResult step();
  // step() in three parts, for an optimizer outside, which runs between the last two when `applied` is true. Ranks
  // compare `groups` with one another; nothing else uses them.
  StepResult prepare_step(const std::vector<ParamGroupOptions>& groups = {});
  std::vector<OptimizerSlice> slices();
  void finish_step(const StepResult& result);
  // Sets how many updates the optimizer made to a parameter (by its first name) before this engine. Every rank makes
  // the same call; set_moment() sets the matching states.
  void set_updates(const std::string& param, int64_t updates);
  // Sets one state (by its number in OptimizerSlice::moments) of the stretch of a parameter that this rank updates.
  void set_moment(const std::string& param, size_t slot, const at::Tensor& values);

  // What the optimizer keeps of one parameter, by its unit and position there, to be read and set between passes.
  // "Local" is the stretch that this rank updates, which may be empty; nothing is returned for a parameter that no
  // optimizer updates. slice() has no gradient, and no moments where the stretch is empty.
  std::optional<OptimizerSlice> slice(size_t unit, size_t param) const;
  // The whole parameter's values of a state, fp32 and in its shape, of which every rank that has a stretch passes its
  // own as `mine`; nothing if no rank has some. Collective, unless every rank keeps all states; `kind` names it.
  std::optional<at::Tensor> full_state(size_t unit, size_t param, const std::optional<at::Tensor>& mine,
                                       const std::string& kind);
  // The averaged gradient, without loss scale and before clipping, of this rank's shard: after a backward pass, and
  // after the step until the next forward pass for training. 1-D, a copy.
  std::optional<at::Tensor> local_grad(size_t unit, size_t param) const;
  // Of all elements, in the parameter's shape; nothing if no rank has one. Collective.
  std::optional<at::Tensor> full_grad(size_t unit, size_t param);
  // The 2-norm of each parameter's gradient by its first name, wherever full_grad() would have one: summed in fp64, a
  // part on each rank. One collective for all.
  std::vector<std::pair<std::string, double>> grad_norms();
  // Sets what this rank keeps of these elements of the gradient, or of weights, master weights included: `values` from
  // element `begin` on. Every rank passes the same values, or those of its own stretch. Throws StateError for a
  // gradient when there is none that the next step would use.
  void set_grad(size_t unit, size_t param, int64_t begin, const at::Tensor& values);
  void set_weights(size_t unit, size_t param, int64_t begin, const at::Tensor& values);
  // This rank's part of a parameter at stage 3: 1-D memory of the engine's, in the parameter's dtype, on the host or
  // the device. It may have no elements; there is none where parameters lie in files. The caller may write to it
  // between passes: the next pass computes with that, and an update of master weights beside it overwrites it.
  std::optional<at::Tensor> local_param(size_t unit, size_t param);
  // How many updates each parameter has had that an optimizer updates, by its first name.
  NamedCounts updates() const;

  // Whether a backward pass has left gradients that no step has used yet.
  bool has_pending_gradients() const;
  // Whether gradients have come since the last step that no begin_backward() came before: of a loss.backward() alone,
  // and so of a loss that nobody has scaled.
  bool has_plain_gradients() const;

  static constexpr int kReadOnly = -1, kDropWrites = -2;
  // Unshards these units until release(), so that their parameters can be read. With `modify_rank` >= 0, release()
  // gives that rank's values to every rank, master weights included. With kReadOnly, release() throws StateError on a
  // rank whose values have changed, unless they were gathered `to_modify`. With kDropWrites it does not check, and
  // values that gather() `can_drop` are restored unless a step was taken. For that, a unit that is not sharded is
  // copied to the host. Unset: what `to_modify` is.
  void gather(const std::vector<size_t>& units, bool to_modify = false, std::optional<bool> can_drop = std::nullopt);
  void release(const std::vector<size_t>& units, int modify_rank = kReadOnly);

  // Saves the parameters, the optimizer's states and `contents` as the checkpoint root/tag, for any number of ranks and
  // any stage to load. Collective, at a step boundary. With zeroshard.checkpoint.async it returns once the state is
  // copied, and a thread writes; the error of a save before it is thrown then. Throws IoError or ValueError on every
  // rank; nothing that was saved before is lost.
  void save_checkpoint(const std::string& root, const std::string& tag, int64_t step,
                       const CheckpointContents& contents = {}, const SaveOptions& save = {});
  // Waits for a save that is under way. Throws its error, or with zeroshard.checkpoint.on_error "warn" logs it, as
  // every call does that has to wait, and returns false.
  bool wait_for_checkpoint();
  // To be called after a step with StepResult::save_failed, once the step is counted: it was applied. Throws the error
  // of the save on every rank, or with zeroshard.checkpoint.on_error "warn" logs it.
  void report_failed_save();
  // Runs `step` on this rank, after a save that is under way. Collective: when it throws on any rank, the first failing
  // rank's error is thrown on every rank, ValueError and StateError as such and anything else as IoError. `call` is
  // what the user called, for messages: it is told when the other ranks call something else.
  void run_together(std::string_view call, const std::function<void()>& step);
  // Takes parameters and states from a checkpoint, whatever number of ranks and stage wrote it. `others` provides
  // memory for tensors that the engine does not know. Collective. Returns nothing if there is no checkpoint and no tag
  // was given. Throws IoError if no checkpoint is whole, ValueError if it belongs to another model. If a part was
  // already overwritten, passes, steps and saves throw StateError until a load of that part succeeds.
  std::optional<LoadedState> load_checkpoint(
      const std::string& root, const LoadOptions& load = {},
      const ChooseTensors& others = [](const auto&) { return std::vector<TensorState>(); });

  // The parameters that a load which failed half way has left of two checkpoints, by their first names, with the one
  // that was read in part. return_unit() returns them as they are.
  NamedValues half_loaded() const;

  // Writes the parameters in their own dtype, and `buffers` of rank 0, as one safetensors file: the unsharded model,
  // for transformers and others. Needs memory for one unit. Tied parameters are written once. Collective.
  void save_weights(const std::string& directory, const std::string& name, bool exclude_frozen = false,
                    const std::vector<TensorState>& buffers = {});

  // Lets every rank see StepResult::stop at the next step. May be called from any thread and from signal handlers.
  void request_stop() noexcept;

  // With zeroshard.offload.delayed_update: brings the last step's update to the parameters, as saves, exports and
  // gather() for modifying do. The gradients of a forward before it are refused. Collective; nothing happens where none
  // is pending. Throws StateError between the micro-batches of a step, and where users have written to parameters since
  // the last step, which is lost then. With `ends` nothing is trained any more: also between micro-batches.
  void publish_update(bool ends = false);

  // Makes the parameters of a unit ordinary tensors again, with their own memory, their current values and dtype. Frees
  // the optimizer's states and everything else that only training needs, and an update that is not published. After the
  // first call the engine may only return its other units and be destroyed; units that were not returned by then cannot
  // be read any more. Collective at stage 3. A module whose units were all returned may be given to another engine.
  void return_unit(size_t unit);

  double loss_scale() const;
  int skipped_in_a_row() const;
  const Config& config() const;
  std::vector<MemoryLine> memory() const;
  // Bytes of freed CPU tensors that this process keeps for the next step: no more than its operators needed at once.
  static int64_t kept_memory();
  size_t num_units() const;
  // Whether every rank keeps all of the unit's parameters, so that they are never gathered.
  bool is_replicated(size_t unit) const;

  // Which of these tensors have other values on some rank. Collective, after a save that is under way.
  std::vector<bool> differ_among_ranks(const std::vector<at::Tensor>& tensors);
  // The one that the engine keeps; null when the communicators are the caller's.
  World* world() { return world_.get(); }

 private:
  struct Impl;
  std::unique_ptr<World> world_;
  std::unique_ptr<Impl> impl_;  // destroyed before the world that it uses
};

}  // namespace zeroshard
