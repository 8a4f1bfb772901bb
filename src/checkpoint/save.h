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

// A stretch of one tensor that this rank keeps: one state of one parameter, or a buffer.
struct StateSlice {
  std::string name, kind, dtype;  // dtype as safetensors spells it
  std::vector<std::string> aliases;
  std::vector<int64_t> shape;  // of the whole tensor
  bool trainable = false;
  int64_t updates = 0;
  Range elements;                   // of the whole tensor, in row-major order; empty: this rank keeps none
  std::shared_ptr<SliceData> data;  // may be null where there are no elements
  int64_t offset = 0;               // of the first element in `data`, in bytes

  int64_t bytes() const;
  // Of the first element; null where it is not in the host's memory.
  std::byte* on_host() const;
};

struct SaveRequest {
  std::string root, tag;  // the checkpoint becomes root/tag
  int64_t step = 0;
  bool latest = true;
  int keep = 0;  // afterwards, that many newest checkpoints stay in root; 0: all
  std::string config_digest;
  std::map<std::string, std::string> versions;
  std::string state = "{}", rank_state = "{}";  // JSON: of the run (rank 0's counts), of this rank
  // In the order in which they are written. Together the ranks have every element of a tensor exactly once; rank 0
  // also names the tensors without elements.
  std::vector<StateSlice> slices;
  // Where rank 0 keeps the directory locked against other processes for longer than this save; null: not longer.
  DirectoryLocks* locks = nullptr;
  // For slices whose data is still on its way: returns when all of it before `end` is there; its error fails the save.
  std::function<void(const void* end)> wait_for_data;
};

// On rank 0; elsewhere there are no bytes.
struct Saved {
  int64_t bytes = 0;  // of the files of all ranks
  double seconds = 0;
};

// Commits a checkpoint, or leaves no trace of it: every rank writes its slices to one file of a temporary directory and
// makes them durable; when all have succeeded, rank 0 adds the manifest and renames the directory. A checkpoint of the
// same tag is replaced in one step. While another process has the directory locked, nothing is done. Collective; `comm`
// moves host memory and is used by no other thread meanwhile. Throws IoError or ValueError on every rank, naming the
// rank at fault; earlier checkpoints are then as they were. Slices must not change until it returns, or has called
// SliceData::end_reading(): after the last slice of the data, also when it cannot write.
Saved save_checkpoint(const SaveRequest& request, Comm& comm, Io& io);

}  // namespace zeroshard
