#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Reads, checks and writes checkpoints as files, without a model or ranks. `zeroshard checkpoint` calls these
// functions. A path names one checkpoint (ROOT/TAG) or a ROOT, which stands for its newest checkpoint. All functions
// throw ValueError or IoError.
namespace zeroshard {

struct CheckpointSummary {
  std::string tag;
  int64_t step = 0;
  int world_size = 0;   // number of ranks that wrote it
  int64_t bytes = 0;    // size of its data files
  bool latest = true;   // loading without a tag may choose it
  std::string problem;  // why it cannot be used; empty if its manifest is sound and its files have the expected sizes
};
// Returns the checkpoints in `root`, the newest commit first. Checkpoints that a run abandoned when it went back to an
// older one come next. Checkpoints with a problem come last.
std::vector<CheckpointSummary> list_checkpoints(const std::string& root);

struct StoredTensor {
  std::string name, kind, dtype;
  std::vector<std::string> aliases;
  std::vector<int64_t> shape;
  bool trainable = false;
  int64_t updates = 0, bytes = 0;
};
struct CheckpointDetails {
  CheckpointSummary summary;
  std::string path, config_digest, state;  // `state` is JSON
  std::map<std::string, std::string> versions;
  std::vector<StoredTensor> tensors;
};
CheckpointDetails inspect_checkpoint(const std::string& path);

// An open checkpoint. The caller reads one tensor at a time.
class StoredCheckpoint {
 public:
  explicit StoredCheckpoint(const std::string& path);
  ~StoredCheckpoint();
  StoredCheckpoint(const StoredCheckpoint&) = delete;
  StoredCheckpoint& operator=(const StoredCheckpoint&) = delete;

  const CheckpointDetails& details() const;
  // Fills `out` with the whole tensor, converted to `dtype`. Each byte is checked before it is used. Needs 32 MiB of
  // memory in addition to `out`.
  void read(const std::string& name, const std::string& kind, const std::string& dtype, void* out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads every byte and compares the checksums. Returns one line per error; empty if there is none.
std::vector<std::string> verify_checkpoint(const std::string& path);

struct ExportOptions {
  std::string dtype = "F32";               // dtype of exported floating-point tensors: F32, BF16 or F16
  int64_t max_file_bytes = 5'000'000'000;  // a larger tensor gets a file of its own
  std::string file_stem = "model";
  // Returns the new name of a tensor, or an empty string to leave the tensor out. Unset: all tensors keep their names.
  std::function<std::string(const std::string& name)> rename = {};
  // Reads elements [begin, end) of any floating-point tensor of the checkpoint. `name` is the name in the checkpoint.
  using Read = std::function<void(const std::string& name, int64_t begin, int64_t end, float* out)>;
  // Changes elements [begin, end) of a floating-point tensor, in row-major order, before they are rounded to `dtype`.
  // `name` is the name in the checkpoint.
  std::function<void(const std::string& name, int64_t begin, int64_t end, float* values, const Read& read)> change = {};
};
// Writes the weights and buffers in Hugging Face's layout: STEM.safetensors, or several files and an index. Tied
// parameters are written once. Needs 16 MiB of memory, or 24 MiB if `change` is set. All files are written under
// temporary names first, so a failure leaves the directory unchanged. After that, files of an earlier export with the
// same stem are deleted if this export has not replaced them. Returns the files, with the index last.
std::vector<std::string> export_weights(const std::string& path, const std::string& directory,
                                        const ExportOptions& options = {});

// The contents of a checkpoint that no engine saved. `state` and `rank_state` are JSON; docs/format.md describes them
// as `state` and as an entry of `ranks`. `data` must hold each tensor's contiguous elements until write_checkpoint
// returns.
struct NewTensor {
  StoredTensor description;  // `bytes` is not read
  const void* data = nullptr;
};
struct NewCheckpoint {
  std::string root, tag;
  int64_t step = 0;
  std::string state, rank_state = "{}";
  std::map<std::string, std::string> versions;
  std::vector<NewTensor> tensors;
};
// Writes and commits the checkpoint in the same way as Engine::save_checkpoint() on a single rank.
void write_checkpoint(const NewCheckpoint& checkpoint);

// Compares two checkpoints. Returns one line per tensor that is missing on one side or differs in shape, dtype or
// value; empty if the checkpoints are equal.
std::vector<std::string> diff_checkpoints(const std::string& one, const std::string& other);

}  // namespace zeroshard
