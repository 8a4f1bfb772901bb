#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/slice_data.h"
#include "comm/comm.h"
#include "file/directory_lock.h"
#include "file/io.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// The elements of one tensor that this rank saves or loads. See TensorRecord for the kinds of tensors.
struct StateSlice {
  std::string name, kind, dtype;  // dtype: the name that safetensors has for it
  std::vector<std::string> aliases;
  std::vector<int64_t> shape;  // shape of the whole tensor
  bool trainable = false;
  int64_t updates = 0;
  Range elements;                   // positions in the whole tensor, in row-major order; empty: this rank has none
  std::shared_ptr<SliceData> data;  // null is allowed if there are no elements
  int64_t offset = 0;               // byte position of the first element in `data`

  int64_t bytes() const;
  // Returns the address of the first element, or null if the data is not in host memory.
  std::byte* on_host() const;
};

struct SaveRequest {
  std::string root, tag;  // the checkpoint becomes the directory root/tag
  int64_t step = 0;
  bool latest = true;
  int keep = 0;  // how many of the newest checkpoints stay in root after the save; 0: all
  std::string config_digest;
  std::map<std::string, std::string> versions;
  std::string state = "{}", rank_state = "{}";  // JSON: the state of the run (rank 0's is saved), and of this rank
  // The slices in the order in which they are written. The slices of all ranks together must contain every element of a
  // tensor exactly once. Rank 0 must also list the tensors without elements.
  std::vector<StateSlice> slices;
  // If set, rank 0 keeps the directory locked against other processes after this save. If null, rank 0 unlocks it.
  DirectoryLocks* locks = nullptr;
  // Must be set if data is still being copied while the slices are written. A call returns when all data at addresses
  // below `end` has been copied. An exception fails the save.
  std::function<void(const void* end)> wait_for_data;
};

// The size and time of a save. Both are 0 on all ranks but rank 0.
struct Saved {
  int64_t bytes = 0;  // of the files of all ranks together
  double seconds = 0;
};

// Commits a checkpoint. Every rank writes its slices durably to a file of its own in a temporary directory. When all
// ranks have succeeded, rank 0 adds the manifest and renames the directory. A checkpoint with the same tag is replaced
// in one step. Then rank 0 writes the tag to the file "latest", if the request has `latest` true, and deletes older
// checkpoints. It only logs errors of these two steps. Collective. `comm` must move host memory, and no other thread
// may use it during the save. Throws IoError, StateError or ValueError on every rank, with a message that names the
// rank at fault. If the error came before the rename, rank 0 deletes the temporary directory, and the earlier
// checkpoints are unchanged, except that those beyond `keep` may have been deleted. If another process has locked the
// directory, the save fails before it changes a checkpoint. It also fails, with StateError, if another engine of this
// process saves to the directory and DirectoryLock::take_turn() refuses a turn. Several slices may share one SliceData.
// The values of a SliceData must not change until the function has called end_reading() of this SliceData or has
// returned. The function calls end_reading() after it has read the last slice of the data, or when an error ends the
// writing. It does not call end_reading() if the save fails before the writing.
Saved save_checkpoint(const SaveRequest& request, Comm& comm, Io& io);

}  // namespace zeroshard
