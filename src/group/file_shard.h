#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "base/write_hold.h"
#include "device/streams.h"
#include "group/file_states.h"
#include "group/optimizer_states.h"
#include "memory/ledger.h"

namespace zeroshard {

// This rank's shard of one group's parameters, or reduced gradients, in swap files: number `group` of those that
// `space` was made for. On loan it is in memory of the host. Positions count the shard's elements from 0.
class FileShard {
 public:
  // `values`: of the elements in `part`, in the shard's dtype. Valid during the call only.
  using Borrower = std::function<void(Range part, const at::Tensor& values)>;

  struct Options {
    size_t group = 0;  // its number
    DType dtype = DType::kFloat32;
    int64_t numel = 0;
    WriteHold::WhileWaiting while_a_save_reads = {};  // called while who writes waits for that
    Category category = Category::kParameters;
  };

  // All elements are zero. `space` and `ledger`, which counts the bytes in files, outlive them.
  FileShard(SwapSpace& space, Options options, Ledger& ledger);
  ~FileShard();
  FileShard(const FileShard&) = delete;
  FileShard& operator=(const FileShard&) = delete;

  int64_t numel() const { return numel_; }
  DType dtype() const { return dtype_; }
  // Where a thread may read it beside this one: as long as this is held, who borrows it to write waits.
  WriteHold& hold() { return hold_; }
  // For that thread. The shard outlives it.
  ChunkReader reader() { return space_.reader(group_, /*slot=*/0); }
  // As OptimizerStates::lend().
  void lend(Range range, OptimizerStates::Access access, const Borrower& use);
  // Copies `range` to `to`, memory of the host.
  void read(Range range, void* to);
  // Copies `range` to `to`, memory of `device`, by `stream`: for the file alone the host waits here. Who writes to the
  // shard later waits for the copy. On the CPU it is done when this returns.
  void begin_read(Range range, void* to, at::Device device, const SideStream& stream);
  at::Tensor copy_of(Range range);
  // The place of `range` in the files, for SwapSpace::will_need_next().
  ChunkStore::Announced place_of(Range range) const { return {group_, values_of(range)}; }

 private:
  // The fp32 values of the store that have the bytes of `range`: those at its ends may have others, too.
  Range values_of(Range range) const;

  SwapSpace& space_;
  size_t group_;
  DType dtype_;
  int64_t numel_;
  Category category_;
  Ledger& ledger_;
  WriteHold hold_;
};

}  // namespace zeroshard
