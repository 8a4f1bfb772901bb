#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Checkpoints as files, without a model or ranks: the functions behind `zeroshard checkpoint`. A path is one checkpoint
// (ROOT/TAG), or a ROOT, which stands for its newest checkpoint. All throw ValueError or IoError.
namespace zeroshard {

struct CheckpointSummary {
  std::string tag;
  int64_t step = 0;
  int world_size = 0;   // of the ranks that wrote it
  int64_t bytes = 0;    // of its data files
  bool latest = true;   // loading without a tag may choose it
  std::string problem;  // why it cannot be used; empty: its manifest is sound and its files have their sizes
};
// Newest commit first; then checkpoints that a run left behind when it went back; then those with a problem.
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

// An open checkpoint, whose tensors are read one by one.
class StoredCheckpoint {
 public:
  explicit StoredCheckpoint(const std::string& path);
  ~StoredCheckpoint();
  StoredCheckpoint(const StoredCheckpoint&) = delete;
  StoredCheckpoint& operator=(const StoredCheckpoint&) = delete;

  const CheckpointDetails& details() const;
  // Fills `out` with the whole tensor, converted to `dtype`; each byte is checked before it is used. Beside `out` it
  // needs 32 MiB.
  void read(const std::string& name, const std::string& kind, const std::string& dtype, void* out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads every byte and compares the checksums. Returns one line per error; empty if there is none.
std::vector<std::string> verify_checkpoint(const std::string& path);

struct ExportOptions {
  std::string dtype = "F32";               // F32, BF16 or F16, of floating-point tensors
  int64_t max_file_bytes = 5'000'000'000;  // a larger tensor gets a file of its own
  std::string file_stem = "model";
  // The name that a tensor gets; empty leaves it out. Unset: all keep their names.
  std::function<std::string(const std::string& name)> rename = {};
  // Elements of any floating-point tensor of the checkpoint. The name is that in the checkpoint.
  using Read = std::function<void(const std::string& name, int64_t begin, int64_t end, float* out)>;
  // Changes elements [begin, end) of a floating-point tensor, in row-major order, before they are rounded to `dtype`.
  // `name` is that in the checkpoint.
  std::function<void(const std::string& name, int64_t begin, int64_t end, float* values, const Read& read)> change = {};
};
// Writes the weights and buffers as Hugging Face keeps them: STEM.safetensors, or several files and an index. Tied
// parameters are written once. Needs memory for one piece of 16 MiB, and half as much for `change`. All files are
// written before any gets its name, so a failure leaves the directory unchanged. Then leftovers of an earlier export
// of the same stem are deleted: its index, its single file, files of another count. Returns the files, the index
// last.
std::vector<std::string> export_weights(const std::string& path, const std::string& directory,
                                        const ExportOptions& options = {});

// A checkpoint that does not come from an engine. `state` and `rank_state` are JSON: `state` and one of `ranks` in
// docs/format.md. `data` must hold each tensor's elements, contiguous, until write_checkpoint returns.
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
// Commits the checkpoint as a save of one rank would; see save_checkpoint.
void write_checkpoint(const NewCheckpoint& checkpoint);

// One line per tensor that is missing on one side, or differs in shape, dtype or value; empty if none does.
std::vector<std::string> diff_checkpoints(const std::string& one, const std::string& other);

}  // namespace zeroshard
