#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

// What Engine::save_checkpoint and Engine::load_checkpoint exchange with their caller. docs/format.md describes the
// files.
namespace zeroshard {

// A tensor that the engine does not know: a buffer of the model, or a part of a state that an outside optimizer keeps
// for a parameter. Contiguous, on any device.
struct TensorState {
  std::string name;  // of the buffer or parameter
  std::string kind;  // "buffer", or the state's name
  at::Tensor tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0;           // the tensor's first element in the whole, in row-major order
};

// A tensor in a checkpoint that the engine does not know.
struct TensorInfo {
  std::string name, kind, dtype;  // dtype as safetensors spells it
  std::vector<int64_t> shape;
};

struct CheckpointContents {
  std::string state = "{}";            // JSON: state of the run; rank 0's is kept
  std::string rank_state = "{}";       // JSON: state of this rank
  std::vector<TensorState> buffers;    // whole; no two ranks save the same name and kind
  std::vector<TensorState> optimizer;  // of the parameters in Engine::slices()
};

struct SaveOptions {
  bool latest = true;                        // load_checkpoint finds it without a tag
  bool exclude_frozen = false;               // leaves out parameters that are not trained
  std::optional<bool> async = std::nullopt;  // whether to return before the commit; unset: zeroshard.checkpoint.async
};

struct LoadedState {
  std::string tag;
  int64_t step = 0;
  std::string state;                     // as saved
  std::vector<std::string> rank_states;  // of every rank that saved
  bool has_optimizer = false;            // optimizer states were loaded
};

struct LoadOptions {
  std::optional<std::string> tag;  // unset: the newest whole checkpoint
  bool strict = false;             // a damaged newest checkpoint is an error instead of being skipped
  bool all_params = true;          // parameters that are missing on either side are an error
  bool optimizer = true;           // optimizer states, step counts and loss scale, too
  bool may_be_first = false;       // no checkpoint is how a run starts: it is not logged that nothing was found
  // Called with CheckpointContents::state as it was saved, before anything is read. Throws ValueError to refuse the
  // checkpoint.
  std::function<void(const std::string& state)> accept = {};
  // The caller's own part of the load, called on all ranks once the engine has taken its part. When it throws on one
  // rank, the load has failed half way on all ranks. Until a load of at least as much succeeds, the engine then refuses
  // to continue. `takes` describes that part, for messages.
  std::function<void(const LoadedState&)> finish = {};
  std::vector<std::string> takes = {};
};

// LibTorch's random numbers on the CPU, as CheckpointContents::rank_state has them: {"random": {"torch": ...}}.
std::string random_state();
// Goes on with the numbers of `rank` among those that saved. A rank that was not there before goes on from another's
// with a seed of its own, and gets it: for other generators of the process. Throws ValueError, on every rank, when some
// rank's were saved by a version with another form of them. What was imported has none, and changes nothing.
std::optional<int64_t> restore_random_state(const std::vector<std::string>& rank_states, int rank);

// Gives a buffer values of its shape and dtype, also where torch refuses to write: into a tensor that was expanded,
// which gets memory of its own, an inference tensor, or a leaf that requires gradients.
void set_buffer(const at::Tensor& buffer, const at::Tensor& values);

// Chooses the memory for tensors that the engine does not know, from those in the checkpoint. It must be separate
// memory: it is partly filled when the load fails, and is requested again for an older checkpoint.
using ChooseTensors = std::function<std::vector<TensorState>(const std::vector<TensorInfo>&)>;

}  // namespace zeroshard
