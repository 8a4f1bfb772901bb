#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "checkpoint/save.h"
#include "memory/ledger.h"

namespace zeroshard {

// Fills memory outside the host from files through host memory, which the ledger counts.
class Uploads {
 public:
  explicit Uploads(Ledger& ledger) : ledger_(ledger) {}
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;
  ~Uploads() { clear(); }

  // Points the slices that are not on the host at memory there. It replaces what an earlier call gave.
  void stage(std::vector<StateSlice>& slices);
  // The host's memory is filled: copies it to where the slices are, and frees it.
  void finish();
  int64_t bytes() const { return bytes_; }  // of host memory

 private:
  struct Upload {
    std::shared_ptr<SliceData> to;
    int64_t offset;        // there
    int64_t begin, bytes;  // on the host
  };

  void clear() noexcept;

  Ledger& ledger_;
  at::Tensor host_;
  int64_t bytes_ = 0;
  std::vector<Upload> uploads_;
};

}  // namespace zeroshard
