#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

// The values that Engine::save_checkpoint and Engine::load_checkpoint exchange with their caller. docs/format.md
// describes the files.
namespace zeroshard {

// The values of a tensor that the engine does not manage: a buffer of the model, or a slice of a state that an external
// optimizer keeps for a parameter. The tensor is contiguous and may be on any device.
struct TensorState {
  std::string name;  // name of the buffer, or of the parameter that the state belongs to
  std::string kind;  // "buffer", or the state's name
  at::Tensor tensor;
  std::vector<int64_t> shape;  // shape of the whole tensor
  int64_t begin = 0;           // index of `tensor`'s first element in the whole tensor, in row-major order
};

// Describes a saved tensor that the engine does not load itself.
struct TensorInfo {
  std::string name, kind, dtype;  // `dtype` is the name that safetensors has for it
  std::vector<int64_t> shape;
};

struct CheckpointContents {
  std::string state = "{}";            // JSON: state of the run. The checkpoint contains the text of rank 0
  std::string rank_state = "{}";       // JSON: state of this rank. The checkpoint contains the text of every rank
  std::vector<TensorState> buffers;    // whole tensors; no two ranks save the same name and kind
  std::vector<TensorState> optimizer;  // external states of the parameters in Engine::slices()
};

struct SaveOptions {
  bool latest = true;           // true: load_checkpoint() can choose this checkpoint when it is called without a tag
  bool exclude_frozen = false;  // true: leave out parameters that are not trained
  // true: save_checkpoint() may return before the checkpoint is committed (Engine::save_checkpoint says when). Unset:
  // zeroshard.checkpoint.async decides.
  std::optional<bool> async = std::nullopt;
};

struct LoadedState {
  std::string tag;
  int64_t step = 0;
  std::string state;                     // CheckpointContents::state as saved
  std::vector<std::string> rank_states;  // CheckpointContents::rank_state of each rank that saved, by rank
  bool has_optimizer = false;            // true: optimizer states were loaded (LoadOptions::optimizer)
};

struct LoadOptions {
  std::optional<std::string> tag;  // unset: the newest whole checkpoint
  bool strict = false;             // true: a damaged newest checkpoint is an error; false: it is skipped
  // true: a parameter that only the model or only the checkpoint has is an error, except for a frozen parameter that
  // SaveOptions::exclude_frozen left out.
  bool all_params = true;
  bool optimizer = true;      // true: also load optimizer states, step counts and the loss scale
  bool may_be_first = false;  // true: the run can be new, so a missing checkpoint is not logged
  // The engine calls `accept` with the saved CheckpointContents::state before it reads any tensor. `accept` throws
  // ValueError to refuse the checkpoint.
  std::function<void(const std::string& state)> accept = {};
  // `finish` loads the caller's own part. The engine first loads its part, and then calls `finish` on all ranks. If
  // `finish` throws on one rank, the load counts on all ranks as failed half way. The engine then refuses to continue
  // until a load of the same parts succeeds. `takes` names the things that `finish` loads, so that an error after a
  // failed load can name them.
  std::function<void(const LoadedState&)> finish = {};
  std::vector<std::string> takes = {};
};

// Returns the state of LibTorch's random generator on the CPU in the form of CheckpointContents::rank_state: {"random":
// {"torch": ...}}.
std::string random_state();
// Restores the state of LibTorch's random generator from `rank_states`, the states that all ranks of a run saved. Rank
// `rank` of the current run takes the state of the same rank. A rank that did not exist in the saved run draws a seed
// of its own from another rank's state. On such a rank, the function returns that seed, so that the caller can seed the
// other generators of the process. On other ranks it returns nothing. Does nothing for an imported checkpoint, because
// it has no random state. Throws ValueError on every rank if any rank's state does not fit the generator of this
// LibTorch.
std::optional<int64_t> restore_random_state(const std::vector<std::string>& rank_states, int rank);

// Writes `values`, which have the shape and dtype of `buffer`, to `buffer`. This also works for tensors to which torch
// refuses to write: an inference tensor, a leaf that requires gradients, or an expanded tensor. An expanded tensor is
// not written, but gets the memory of `values`.
void set_buffer(const at::Tensor& buffer, const at::Tensor& values);

// A function that the caller of a load provides. The load passes it descriptions of the saved tensors that the engine
// does not load itself. The function chooses the tensors to read, and returns memory for each of them. The memory must
// not be the caller's own state, because a damaged checkpoint leaves the memory partly filled. The load then calls the
// function again, for an older checkpoint.
using ChooseTensors = std::function<std::vector<TensorState>(const std::vector<TensorInfo>&)>;

}  // namespace zeroshard
