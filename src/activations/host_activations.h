#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "activations/activation_keeper.h"
#include "activations/counted_records.h"
#include "activations/kept_tensors.h"

namespace zeroshard {

inline constexpr int kHostBlocks = 3;  // the most blocks of host memory, if tensors can go to files

// Keeps device tensors in pinned host memory. A separate stream copies them while the device computes. It copies a
// tensor to the host as soon as keep() gets the tensor. It copies the tensor back while the backward pass still uses
// the tensor that was brought back before it. If several torch modules give keep() the same tensor, the tensor is kept
// once.
//
// Each kept tensor is in a block of host memory. Blocks are reused from step to step. The number of blocks is the
// largest number of tensors that were kept at one time, and each block is as long as the longest tensor that was in it.
// With files there are at most kHostBlocks blocks. If all of them are in use when a tensor comes, the tensor that has
// been in a block for the longest time goes to the files.
class HostActivations final : public ActivationKeeper {
 public:
  // `files` is null if all tensors stay in memory.
  HostActivations(c10::Device device, std::unique_ptr<CountedRecords> files);
  ~HostActivations() override;
  HostActivations(const HostActivations&) = delete;
  HostActivations& operator=(const HostActivations&) = delete;

  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor) override;
  void begin_backward() override;

 private:
  class Copies;
  class Kept;

  std::unique_ptr<CountedRecords> files_;
  std::shared_ptr<Copies> copies_;  // shared with the kept tensors, which may outlive this object
  KeptTensors<Kept> known_;
};

}  // namespace zeroshard
