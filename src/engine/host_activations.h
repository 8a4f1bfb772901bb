#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "engine/activation_keeper.h"

namespace zeroshard {

// Keeps tensors of a device in pinned host memory. They are copied by a stream of its own, beside what the device
// computes: away as soon as they are made, and back one ahead of the one that is used.
//
// The memory is used again from step to step: there are as many blocks as tensors were kept at once, and each is as
// long as the longest that lay in it.
class HostActivations final : public ActivationKeeper {
 public:
  explicit HostActivations(c10::Device device);
  ~HostActivations() override;
  HostActivations(const HostActivations&) = delete;
  HostActivations& operator=(const HostActivations&) = delete;

  std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor) override;
  void begin_backward() override;

 private:
  class Copies;
  class Kept;

  std::shared_ptr<Copies> copies_;  // which what is kept has, too
};

}  // namespace zeroshard
