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
#include "zeroshard/kept_tensor.h"
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
  std::vector<std::string> names;  // all names of the parameter, several if it is tied; messages use the first
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = true;
  // Param group of the optimizer. -1: the parameter is never updated, like a frozen one, and its gradient is dropped.
  int param_group = 0;
  // true: the elements are not numbers, such as 4-bit weights packed into a floating-point dtype. Training in 16 bits
  // does not convert such a parameter.
  bool packed = false;
  bool keeps_fp32_moments = false;  // true: fp32 moments even if other moments are stored in 8 bits
};

// Writes elements [begin, end) of the floating-point parameter `name`, in row-major order, to `out` on the host as
// fp32. Each rank calls the reader for the elements that the rank keeps. An element must have the same value on every
// rank.
using ParameterReader = std::function<void(const std::string& name, int64_t begin, int64_t end, float* out)>;

// The definition of a unit: parameters that are gathered, reduced and freed together. It is normally one transformer
// block.
struct UnitDefinition {
  std::string name;
  std::vector<ParamDefinition> params;
  int parent = -1;  // index of the unit whose modules contain this unit's modules; -1: none
  // Returns the tensors of each parameter. A tied parameter has several if its tensors are different objects over the
  // same memory. The engine's constructor calls the functions of the units one after the other, and shards each unit
  // before it calls the next function. So the function may create the unit's tensors, and the model may be larger than
  // one rank's memory.
  std::function<std::vector<std::vector<at::Tensor>>()> tensors;
  ParameterReader values = {};  // if set, provides the values, and the tensors need no memory
};

// Throws ValueError if two of `params` share memory. Tied tensors that are the same elements in the same order are one
// parameter. The engine would treat all other tensors that share memory as separate parameters. Code that builds
// UnitDefinitions must call this function with each parameter once. The function does not check tensors without memory,
// or with gaps in their memory.
void check_apart(const std::vector<std::pair<std::string, at::Tensor>>& params);

struct EngineOptions {
  Config config;
  at::Device device = at::kCPU;
  std::vector<ParamGroupOptions> param_groups;  // empty: from config.optimizer; Muon has two groups, others one
  OptimizerConfig::Type optimizer = OptimizerConfig::Type::kAdamW;
  std::string external_optimizer = {};  // class name of a user's optimizer, which updates slices(); empty: none
  // Values besides the model that must be equal on every rank. Each list has a name for error messages, such as
  // "configuration". The engine compares these values before it allocates anything.
  std::vector<std::pair<std::string, NamedValues>> agreement;
  std::vector<std::pair<std::string, at::Tensor>> buffers;  // named buffers of the model, on `device`
  std::shared_ptr<RankObserver> observer = nullptr;  // gets reports about steps, see World::observer(); may be null
  // Called with the reason when a backward pass fails on this rank, before all ranks discard the pass. Other ranks may
  // wait for this rank in the caller's own communicators, such as those of a sequence group. The function must make
  // these ranks fail. May be empty.
  std::function<void(const std::string&)> on_failed_backward = {};
};

struct StepResult {
  bool applied = true;       // false: all ranks skipped the step because a gradient was not finite
  double grad_norm = 0;      // norm of the reduced gradients, without loss scale and before clipping; NaN if skipped
  double loss_scale = 1;     // loss scale of this step's gradients
  bool stop = false;         // true: a rank has requested the end of the run; the same on all ranks
  bool save_failed = false;  // true: a background save has failed (report_failed_save()); the same on all ranks
};

// The elements of one parameter that this rank updates, for an external optimizer. `master` is fp32 and 1-D.
struct OptimizerSlice {
  std::string param;
  int param_group = 0;
  at::Tensor master;
  bool has_grad = false;  // valid between prepare_step() and finish_step()
  at::Tensor grad;        // fp32, clipped, without loss scale; undefined if the parameter has no gradient
  // The engine's moments of these elements, fp32 and 1-D. If the states lie in files, `master` and the moments are
  // copies. Moments that the engine does not store in fp32 are always copies.
  std::vector<at::Tensor> moments;
  std::vector<int64_t> shape;  // shape of the whole parameter
  int64_t begin = 0;           // first element of the slice, in the parameter's row-major order
};

// Bytes of one rank in one category of memory ("parameters", "gather ring", ...) on one tier ("device", "host" or
// "file").
struct MemoryLine {
  std::string category, tier;
  int64_t planned = 0, measured_peak = 0;
};

// Trains parameters whose states are sharded across ranks (ZeRO stages 0-3). Every rank calls the same methods in the
// same order. A front end calls pre_forward() and post_forward() around the forward of each unit's modules; unit()
// calls both. After an exception the engine must not be used any more, because ranks can be in different states. There
// are three exceptions to this rule: after a failed backward pass (see fail_backward()), save or load, the caller may
// continue.
class Engine {
 public:
  // Takes over the parameters. Collective. The buffers (except sparse and quantized ones) get rank 0's values on every
  // rank, and so do the parameters of units without UnitDefinition::values. `gather` and `reduce` may be the same
  // communicator. With two communicators, each rank can interleave gathers with reductions in an order of its own.
  // `checkpoint` is a communicator for host memory, which a thread of the engine uses, too. Without `checkpoint`
  // nothing can be saved or loaded. The engine must be destroyed before the communicators. With `replication`, `gather`
  // and `reduce` have only the ranks of this replica, and `checkpoint` has all ranks. Throws ValueError on every rank
  // if parameters or options differ among ranks.
  Engine(std::vector<UnitDefinition> units, EngineOptions options, Comm& gather, Comm& reduce,
         Comm* checkpoint = nullptr, const ReplicaComms& replication = {});
  // Works like the constructor above with the communicators of `world`. The engine then owns `world`. If `options` has
  // no observer, the engine takes that of `world`.
  Engine(std::vector<UnitDefinition> units, EngineOptions options, std::unique_ptr<World> world);
  ~Engine();

  void begin_forward(bool training);
  void pre_forward(size_t unit);
  // Ends the unit's forward and returns false. There is one exception. If the unit's parameters are sharded, and the
  // module returns such a parameter or a view of one, the unit stays unsharded and the method returns true. The caller
  // must then call post_forward() for the unit again at the end of the enclosing forward. `outputs` are the tensors
  // that the unit's module returns.
  bool post_forward(size_t unit, const std::vector<at::Tensor>& outputs);
  // Does the same as post_forward(), for a caller that is not inside another unit's forward. Throws StateError if
  // post_forward() would return true.
  void end_unit_forward(size_t unit, const std::vector<at::Tensor>& outputs);
  // Returns whether the unit is unsharded because its backward pass is running.
  bool is_in_backward(size_t unit) const;
  // Calls `forward`, which returns a tensor, as the forward of a unit. This method is for modules without hooks, as in
  // C++.
  template <typename Forward>
  at::Tensor unit(size_t index, Forward&& forward) {
    pre_forward(index);
    at::Tensor output = std::forward<Forward>(forward)();
    end_unit_forward(index, {output});
    return output;
  }

  // Moves `tensor`, which a backward pass will need, to the tier zeroshard.offload.activations, so that the caller can
  // free the tensor. The engine expects the calls of KeptTensor::bring_back() in reverse order of keep(). Returns null
  // if the tensor stays in place. A tensor stays if keeps_tensors() is false, if it is a parameter or a view of one,
  // and if it cannot be moved as one block of bytes (such as a small tensor, one with gaps in its memory, or one on
  // another device). Any thread may call keep(). Throws IoError; after that the engine must not be used.
  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor);
  // Returns whether the configuration moves activation checkpoints. If not, keep() always returns null.
  bool keeps_tensors() const;

  // Returns loss * loss_scale / micro_batches. The default of `micro_batches` is progress().batch.accumulation.
  at::Tensor scale_loss(const at::Tensor& loss) const;
  at::Tensor scale_loss(const at::Tensor& loss, int64_t micro_batches) const;
  // Returns loss * loss_scale. This function is for a caller that itself calls backward() of the result. That backward
  // pass divides the gradients by progress().batch.accumulation, so the caller must not divide the loss by the number
  // of micro-batches. If the loss scale is not 1, the caller must scale every loss with this function, because the
  // engine refuses the gradients of a loss that was not scaled.
  at::Tensor scale(const at::Tensor& loss);
  // The caller calls begin_backward() before loss.backward() and end_backward() after it. If `sync` is false (no_sync),
  // the pass only adds the gradients to this rank's own sum. The next pass with `sync`, or else the step, reduces that
  // sum. end_backward() is collective. The engine's first begin_backward() with `sync` is collective, too.
  void begin_backward(bool sync = true);
  void end_backward();
  // Calls begin_backward(), backward() of the scaled loss, and end_backward() for one micro-batch. If backward() of the
  // loss throws, calls fail_backward() and rethrows the exception. The micro-batch is counted by the next call of this
  // method or by the step, or earlier if the caller calls end_micro_batch().
  void backward(const at::Tensor& loss);
  // The caller calls fail_backward() instead of end_backward() on a rank whose loss.backward() threw. All ranks then
  // discard all gradients since the last step. On the other ranks end_backward() throws StateError with `reason`. The
  // caller may then begin the step anew. A new step with the same batches gives the same bits as a step that never
  // failed.
  void fail_backward(const std::string& reason) noexcept;
  // Returns the text of the CommError with which the last backward pass failed on this rank, or "". This method is for
  // callers that get the exception without its type, such as Python.
  const std::string& backward_comm_error() const;
  // Returns the text of the IoError that a hook threw in the last backward pass, or "".
  const std::string& backward_io_error() const;
  // Waits until no other rank reads this rank's parameters any more. An external optimizer must call it before it
  // writes to master weights between steps.
  void await_readers_of_master_weights();
  // Copies the master weights to the parameters of all ranks. An external optimizer must call it after it has written
  // to master weights between steps. Collective.
  void publish_master_weights();
  // Discards all gradients since the last step, and no longer counts their micro-batches. Collective.
  void zero_grad();
  // Counts a finished micro-batch that is not the last one of its step. step() counts the last one.
  void end_micro_batch();

  // Returns the progress of training. The caller may change its values, and the engine continues from the changed
  // values.
  Progress& progress();
  const Progress& progress() const;
  // Returns the progress without the micro-batches of the current step, because no checkpoint contains their gradients.
  Progress progress_at_last_step() const;
  // Calls Progress::restore(). The caller may call it only between steps.
  void restore_progress(const NamedCounts& saved, int64_t step);
  // Sets the number of samples that all ranks together take in each later step. The number of micro-batches of a step
  // follows from it. micro_steps becomes the count that it would have if all earlier steps had been of that size.
  // Throws ValueError if no number of micro-batches gives `samples`. An engine that was made for one micro-batch per
  // step and reduces in 16 bits cannot accumulate in fp32 later. With such an engine, the method also throws ValueError
  // for several micro-batches, unless grad_accum_dtype is set. Throws StateError within a step.
  void set_train_batch_size(int64_t samples);
  // Sets how many samples each micro-batch of the caller has from now on.
  void set_micro_batch_size(int64_t samples);

  // Clips the gradients, updates the parameters, publishes them to all ranks, and counts the step. If a gradient is not
  // finite, all ranks skip the update, and throw StateError after Config::max_skipped_steps skipped steps in a row.
  // With zeroshard.offload.delayed_update, the method publishes the update of the step before, and only begins its own
  // update. The caller must call step() only when Progress::is_boundary() says that the step ends, because step()
  // itself does not check this. `groups` are the param groups of this step, so that for example learning rates can
  // change from step to step. Without `groups`, EngineOptions::param_groups are used. Throws ValueError if `groups`
  // differ among ranks.
  StepResult step(const std::vector<ParamGroupOptions>& groups);
  StepResult step();
  // prepare_step(), slices() and finish_step() are the parts of step(), for an external optimizer. The caller calls
  // prepare_step() and gets a StepResult. If its `applied` is true, the caller runs its optimizer on slices(). In any
  // case it then calls finish_step() with the StepResult. prepare_step() uses `groups` only to check that all ranks
  // pass the same ones.
  StepResult prepare_step(const std::vector<ParamGroupOptions>& groups = {});
  std::vector<OptimizerSlice> slices();
  void finish_step(const StepResult& result);
  // Sets the number of updates that an optimizer made to a trained parameter before this engine existed. `param` is the
  // parameter's first name. Every rank must make the same call. set_moment() sets the matching states.
  void set_updates(const std::string& param, int64_t updates);
  // Sets one moment of this rank's slice of the parameter `param`. `slot` is the moment's index in
  // OptimizerSlice::moments.
  void set_moment(const std::string& param, size_t slot, const at::Tensor& values);

  // Returns this rank's slice of parameter number `param` of a unit, with its optimizer state. The caller may read the
  // slice between passes, and write to those of its tensors that are not copies. Returns nothing for a parameter that
  // no optimizer updates. The slice never has a gradient. A slice without elements has no moments.
  std::optional<OptimizerSlice> slice(size_t unit, size_t param) const;
  // Returns all values of one optimizer state of a parameter, as fp32 in the parameter's shape. Each rank that has a
  // slice of the parameter passes its own values as `mine`. `kind` names the state in errors. Returns nothing if no
  // rank has values, or if no optimizer updates the parameter. Collective, except if every rank keeps all states.
  std::optional<at::Tensor> full_state(size_t unit, size_t param, const std::optional<at::Tensor>& mine,
                                       const std::string& kind);
  // Returns a 1-D copy of the reduced gradient of the elements that this rank updates, in fp32, without loss scale and
  // before clipping. The gradient exists from the end of a backward pass until the next pass for training begins, so it
  // still exists after the step. Returns nothing if there is no gradient. Throws StateError if the last backward pass
  // was not reduced (no_sync) or has not ended.
  std::optional<at::Tensor> local_grad(size_t unit, size_t param) const;
  // Returns the whole gradient in the parameter's shape, or nothing if no rank has one. Collective.
  std::optional<at::Tensor> full_grad(size_t unit, size_t param);
  // Returns the 2-norm of the gradient of each parameter that has a full_grad(), by the parameter's first name. Each
  // rank sums its own part in fp64. Collective. The number of parameters does not change the number of collectives.
  std::vector<std::pair<std::string, double>> grad_norms();
  // Set those elements of the gradient or of the weights that this rank keeps. Do nothing for a parameter that no
  // optimizer updates. `values` begin at element `begin` of the parameter. Every rank passes the same values, or the
  // values of its own slice. set_weights() also sets master weights. set_grad() throws StateError if there is no
  // gradient that the next step would use, and ValueError if `values` lack elements that this rank keeps. set_weights()
  // throws ValueError if `values` go beyond the end of the parameter.
  void set_grad(size_t unit, size_t param, int64_t begin, const at::Tensor& values);
  void set_weights(size_t unit, size_t param, int64_t begin, const at::Tensor& values);
  // Returns this rank's shard of a parameter at stage 3: 1-D memory of the engine in the parameter's dtype, on the host
  // or the device. The shard can be empty. Returns nothing if the parameter lies in files. The caller may write to the
  // shard between passes, and the next pass computes with the new values. If the parameter has separate master weights,
  // the next update overwrites the shard.
  std::optional<at::Tensor> local_param(size_t unit, size_t param);
  // Returns the number of updates of each parameter that an optimizer updates, by the parameter's first name.
  NamedCounts updates() const;

  // Returns whether there are gradients that a step has not used yet.
  bool has_pending_gradients() const;
  // Returns whether gradients have arrived outside of begin_backward() and end_backward() since the last step. This
  // happens if the caller calls loss.backward() alone.
  bool has_plain_gradients() const;

  static constexpr int kReadOnly = -1, kDropWrites = -2;
  // Unshards these units until release(), so that the caller can read their parameters. `to_modify` says that the
  // caller will also write to them. `can_drop` says that release() may have to drop what the caller has written. The
  // default of `can_drop` is the value of `to_modify`. `modify_rank` is a rank, kReadOnly or kDropWrites. With a rank,
  // release() broadcasts that rank's values to every rank, including master weights. With kReadOnly, release() throws
  // StateError on a rank that has changed values of units gathered with neither `to_modify` nor `can_drop`. A unit that
  // is gathered several times stays gathered until the last release(), and each release() ends the latest gather().
  // With kDropWrites, release() does not check for changes, and restores the values of units gathered with `can_drop`,
  // unless a step was taken since gather(). If such a unit is not sharded or was already gathered, gather() copies its
  // values to the host, because resharding would not restore them.
  void gather(const std::vector<size_t>& units, bool to_modify = false, std::optional<bool> can_drop = std::nullopt);
  void release(const std::vector<size_t>& units, int modify_rank = kReadOnly);

  // Saves the parameters, the optimizer's states and `contents` as the checkpoint root/tag. Any number of ranks can
  // load the checkpoint at any stage. Collective. The call does not save gradients. It throws StateError within a
  // backward pass, and with a delayed update also between the micro-batches of a step. If SaveOptions::async or, if
  // that is unset, zeroshard.checkpoint.async is true, the call returns after it has copied the state, and a thread
  // writes the files. There are two exceptions, in which the call returns only after the files are written: if the copy
  // would exceed the memory limits, and if a unit has some states in files and others on a device. The call also
  // reports the error of a previous background save, as wait_for_checkpoint() does. Throws IoError or ValueError on
  // every rank. A failed save leaves earlier checkpoints as they are. After a save, zeroshard.checkpoint.keep decides
  // which earlier checkpoints are deleted.
  void save_checkpoint(const std::string& root, const std::string& tag, int64_t step,
                       const CheckpointContents& contents = {}, const SaveOptions& save = {});
  // Waits for a pending save. Returns true if there was no error. If the save failed, throws its error. With
  // zeroshard.checkpoint.on_error "warn", logs the error instead and returns false. Every call that has to wait for a
  // save treats the save's error in this way.
  bool wait_for_checkpoint();
  // Reports the error of a failed background save on every rank, as wait_for_checkpoint() does. The caller must call
  // this method after a step with StepResult::save_failed. The step itself has ended, so the caller must count the step
  // first.
  void report_failed_save();
  // Waits for a pending save, then runs `step` on this rank. Collective. If `step` throws on some ranks, every rank
  // throws the error of the lowest of these ranks. ValueError and StateError keep their type, and other errors become
  // IoError. Only a CommError is not passed to the other ranks, because the ranks cannot communicate after it. `call`
  // is the name of the user's call. If other ranks call something else, the error names `call`.
  void run_together(std::string_view call, const std::function<void()>& step);
  // Loads parameters and states from a checkpoint, which any number of ranks at any stage can have written. `others`
  // provides memory for tensors that the engine does not load itself. Collective. Returns nothing if there is no
  // checkpoint and `load` has no tag. Throws IoError if no checkpoint is whole, ValueError if the checkpoint belongs to
  // another model, and StateError between a backward pass and its step. If the load fails after it has overwritten a
  // part of the state, then passes, steps and saves throw StateError until a load of that part succeeds.
  std::optional<LoadedState> load_checkpoint(
      const std::string& root, const LoadOptions& load = {},
      const ChooseTensors& others = [](const auto&) { return std::vector<TensorState>(); });

  // Returns the parameters that can hold values of two checkpoints because a load failed half way. Each pair has the
  // parameter's first name and the path of the checkpoint that was partly read. return_unit() returns such parameters
  // as they are.
  NamedValues half_loaded() const;

  // Writes the unsharded model as one safetensors file, which transformers and other libraries can read. The file has
  // the parameters in their own dtype, and the `buffers` of rank 0. With `exclude_frozen`, it lacks parameters that are
  // not trained. Needs memory for one unit. Writes tied parameters once. Collective.
  void save_weights(const std::string& directory, const std::string& name, bool exclude_frozen = false,
                    const std::vector<TensorState>& buffers = {});

  // Makes the next step return StepResult::stop on every rank. Any thread and any signal handler may call it.
  void request_stop() noexcept;

  // Applies the pending update of the last step to the parameters, if zeroshard.offload.delayed_update has left one.
  // Afterwards the engine refuses gradients of a forward that ran before the update was applied. Collective. `ends`
  // says that training is over. Without `ends`, throws StateError between the micro-batches of a step. If users have
  // written to parameters since the last step, throws StateError, and what they have written is lost. Saves, loads,
  // exports and gather() with `to_modify` also apply the update, except for an export between the micro-batches of a
  // step.
  void publish_update(bool ends = false);

  // Turns the parameters of a unit into ordinary tensors with their own memory, current values and dtype. The first
  // call frees the optimizer's states, an unpublished update and everything else that only training needs. After that,
  // the caller may only return other units and destroy the engine, and cannot read units that are not returned.
  // Collective at stage 3. Another engine can take over a module after all its units were returned.
  void return_unit(size_t unit);

  double loss_scale() const;
  int skipped_in_a_row() const;
  const Config& config() const;
  std::vector<MemoryLine> memory() const;
  // Returns how many bytes of freed CPU tensors this process keeps for the next step. Kept and used memory together
  // never exceed the largest amount that was in use at one time in this step and the last. Counts only tensors of at
  // least 1 MiB, because other tensors are in the heap of malloc().
  static int64_t kept_memory();
  size_t num_units() const;
  // Returns whether every rank keeps all of the unit's parameters, so that no pass gathers them.
  bool is_replicated(size_t unit) const;

  // Returns for each of `tensors` whether its values differ between any two ranks, by their hashes. Collective. Waits
  // for a pending save first.
  std::vector<bool> differ_among_ranks(const std::vector<at::Tensor>& tensors);
  // Returns the world that the engine owns, or null if the communicators belong to the caller.
  World* world() { return world_.get(); }

 private:
  struct Impl;
  std::unique_ptr<World> world_;
  std::unique_ptr<Impl> impl_;  // declared last, so that it is destroyed before the world that it uses
};

}  // namespace zeroshard
