#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "engine/activation_keeper.h"
#include "engine/counted_records.h"
#include "engine/kept_tensors.h"

namespace zeroshard {

inline constexpr int kHostBlocks = 3;  // on the way to and from files

// Keeps tensors of a device in pinned host memory. They are copied by a stream of its own, beside what the device
// computes: away as soon as they are made, and back one ahead of the one that is used. A tensor that several parts of a
// model are given is kept once.
//
// The memory is used again from step to step: there are as many blocks as tensors were kept at once, and each is as
// long as the longest that lay in it. With files there are at most kHostBlocks: the tensor that lies there for longest
// goes to the files where a block is needed.
class HostActivations final : public ActivationKeeper {
 public:
  // `files`: null where everything stays in memory.
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
  std::shared_ptr<Copies> copies_;  // which what is kept has, too
  KeptTensors<Kept> known_;
};

}  // namespace zeroshard
