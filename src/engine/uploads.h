#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "checkpoint/save.h"
#include "memory/ledger.h"

namespace zeroshard {

// Device memory is filled from files by way of host memory, which the ledger counts.
class Uploads {
 public:
  Uploads(at::Device device, Ledger& ledger) : device_(device), ledger_(ledger) {}
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;
  ~Uploads() { clear(); }

  // Points the slices that are not on the host at memory there, instead of what an earlier call gave. All their memory
  // is the device's.
  void stage(std::vector<StateSlice>& slices);
  // The host's memory is filled: copies it to the device, and frees it.
  void finish();
  int64_t bytes() const { return bytes_; }  // of host memory

 private:
  struct Upload {
    void* device;
    int64_t begin, bytes;  // on the host
  };

  void clear() noexcept;

  at::Device device_;
  Ledger& ledger_;
  at::Tensor host_;
  int64_t bytes_ = 0;
  std::vector<Upload> uploads_;
};

}  // namespace zeroshard
