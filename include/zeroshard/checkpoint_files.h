#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Reads, checks and writes checkpoints as files, without a model or ranks. `zeroshard checkpoint` calls these
// functions. A `path` is either ROOT/TAG, which names one checkpoint, or ROOT, the directory that contains the
// checkpoints. ROOT stands for the newest usable checkpoint whose CheckpointSummary::latest is true. If there is none,
// ROOT stands for the newest usable checkpoint. The functions throw ValueError for a wrong argument, a missing
// checkpoint or an unsound manifest. They throw IoError if a file cannot be read or written or is damaged, and if all
// checkpoints in ROOT are unusable. list_checkpoints() and verify_checkpoint() do not throw for unsound or damaged
// checkpoints, but name them in their results.
namespace zeroshard {

struct CheckpointSummary {
  std::string tag;
  int64_t step = 0;
  int world_size = 0;   // number of ranks that wrote the checkpoint
  int64_t bytes = 0;    // size of its data files
  bool latest = true;   // true: a load without a tag can choose this checkpoint
  std::string problem;  // why it cannot be used; empty: its manifest is sound and its files have the expected sizes
};
// Returns the checkpoints in `root`, the newest commit first. After these come checkpoints that a run abandoned when it
// went back to an older checkpoint. Checkpoints with a problem come last.
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

// An open checkpoint, from which the caller reads one tensor at a time.
class StoredCheckpoint {
 public:
  explicit StoredCheckpoint(const std::string& path);
  ~StoredCheckpoint();
  StoredCheckpoint(const StoredCheckpoint&) = delete;
  StoredCheckpoint& operator=(const StoredCheckpoint&) = delete;

  const CheckpointDetails& details() const;
  // Fills `out` with the whole tensor of this name and kind, converted to `dtype`. Verifies the checksums of all bytes
  // that it reads. Needs 32 MiB of memory in addition to `out`.
  void read(const std::string& name, const std::string& kind, const std::string& dtype, void* out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads every byte of a checkpoint and compares the checksums. Returns one line per error. If `path` is ROOT, also
// returns one line for each other checkpoint in ROOT that has a CheckpointSummary::problem.
std::vector<std::string> verify_checkpoint(const std::string& path);

struct ExportOptions {
  std::string dtype = "F32";               // dtype of exported floating-point tensors: F32, BF16 or F16
  int64_t max_file_bytes = 5'000'000'000;  // largest size of a file; a larger tensor gets a file of its own
  std::string file_stem = "model";
  // Returns the exported name of a tensor, or an empty string to leave the tensor out. Unset: all tensors keep their
  // names.
  std::function<std::string(const std::string& name)> rename = {};
  // Reads elements [begin, end) of any floating-point weight of the checkpoint into `out`. `name` is the name in the
  // checkpoint.
  using Read = std::function<void(const std::string& name, int64_t begin, int64_t end, float* out)>;
  // Changes `values`, elements [begin, end) of a floating-point tensor in row-major order, before the export rounds
  // them to `dtype`. `name` is the name in the checkpoint. `read` reads weights.
  std::function<void(const std::string& name, int64_t begin, int64_t end, float* values, const Read& read)> change = {};
};
// Writes a checkpoint's weights and buffers to `directory` in Hugging Face's layout: STEM.safetensors, or several files
// and an index. Writes tied parameters once. Needs about 64 MiB of memory, and 8 MiB more if `change` is set. First
// writes all files under temporary names, so a failure while it reads and writes tensors leaves the directory
// unchanged. Then renames the files. Last, deletes the files of an earlier export with the same stem, except those that
// the renaming has replaced. Returns the paths of the files, with the index last. Throws ValueError if a finite value
// would become infinite in `dtype`.
std::vector<std::string> export_weights(const std::string& path, const std::string& directory,
                                        const ExportOptions& options = {});

// A tensor for write_checkpoint(). `data` must hold the tensor's contiguous elements until write_checkpoint() returns.
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
// Writes and commits a checkpoint in the same way as Engine::save_checkpoint() does on a single rank.
void write_checkpoint(const NewCheckpoint& checkpoint);

// Compares two checkpoints. Returns one line per tensor that is missing in one of them or differs in shape, values or
// number of updates. If there is no difference, returns no line. Compares floating-point tensors of different dtypes by
// their values. Other tensors of different dtypes count as different.
std::vector<std::string> diff_checkpoints(const std::string& one, const std::string& other);

}  // namespace zeroshard
