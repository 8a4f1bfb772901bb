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

// The elements of one tensor that this rank keeps. The tensor is one state of one parameter, or a buffer.
struct StateSlice {
  std::string name, kind, dtype;  // dtype as safetensors spells it
  std::vector<std::string> aliases;
  std::vector<int64_t> shape;  // shape of the whole tensor
  bool trainable = false;
  int64_t updates = 0;
  Range elements;                   // positions in the whole tensor, in row-major order; empty: this rank keeps none
  std::shared_ptr<SliceData> data;  // may be null if there are no elements
  int64_t offset = 0;               // byte position of the first element in `data`

  int64_t bytes() const;
  // Returns the address of the first element; null if it is not in host memory.
  std::byte* on_host() const;
};

struct SaveRequest {
  std::string root, tag;  // the checkpoint becomes root/tag
  int64_t step = 0;
  bool latest = true;
  int keep = 0;  // number of newest checkpoints that stay in root after the save; 0: all
  std::string config_digest;
  std::map<std::string, std::string> versions;
  std::string state = "{}", rank_state = "{}";  // JSON: state of the run (rank 0's is saved), state of this rank
  // The slices in the order in which they are written. Together, the slices of all ranks contain every element of a
  // tensor exactly once. Rank 0 also names the tensors without elements.
  std::vector<StateSlice> slices;
  // Keeps the directory locked on rank 0 against other processes after this save; null: unlocks it after the save.
  DirectoryLocks* locks = nullptr;
  // Waits for slices whose data is still being copied. Returns when all data before the address `end` has arrived. An
  // exception fails the save.
  std::function<void(const void* end)> wait_for_data;
};

// The size and time of a save. Only rank 0 knows the bytes.
struct Saved {
  int64_t bytes = 0;  // sum over the files of all ranks
  double seconds = 0;
};

// Commits a checkpoint, or leaves no trace of it. Every rank writes its slices durably to one file of a temporary
// directory. When all ranks have succeeded, rank 0 adds the manifest and renames the directory. A checkpoint with the
// same tag is replaced in one step. If another process has locked the directory, the save fails and changes nothing.
// Collective; `comm` moves host memory, and no other thread uses it meanwhile. Throws IoError or ValueError on every
// rank, naming the rank at fault; earlier checkpoints are then unchanged. The data of a slice must not change until the
// function returns or has called SliceData::end_reading() for it. The function calls end_reading() after the last slice
// of the data, even if it cannot write.
Saved save_checkpoint(const SaveRequest& request, Comm& comm, Io& io);

}  // namespace zeroshard
