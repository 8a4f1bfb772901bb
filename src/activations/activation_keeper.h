#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "zeroshard/kept_tensor.h"

namespace zeroshard {

// Stores tensors that Engine::keep() gets, outside of the memory in which the model computes. If the model computes on
// a device, the tensors go to host memory or to files. If it computes on the CPU, they go to files. Any thread may use
// an ActivationKeeper.
class ActivationKeeper {
 public:
  // A kept tensor stays valid after its keeper is destroyed, as long as somebody holds it.
  virtual ~ActivationKeeper() = default;
  // Returns null if the tensor must stay where it is (see can_leave()). Otherwise copies the tensor's value away and
  // returns the copy, which does not keep the tensor's memory alive.
  virtual std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor) = 0;
  // Says that the backward pass starts, so that the most recently kept tensors will be requested soon.
  virtual void begin_backward() = 0;
};

inline constexpr int64_t kLeastKeptBytes = 4096;  // a smaller tensor would take 4096 bytes of a file, too
inline constexpr uintptr_t kKeptAlignment = 64;

// Returns whether `tensor` is on `device` and can be kept elsewhere. To be kept, a tensor must be dense, its bytes must
// be its whole value (no conj or neg bit, no quantizer), it must be large enough to be worth the copy, and its memory
// must be aligned to 64 bytes like torch's own. The alignment matters, because the tensor that comes back has aligned
// memory, and kernels may sum in another order if the alignment differs. An inference tensor cannot be kept, because it
// has no version counter.
inline bool can_leave(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.device() == device && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() && !tensor.is_inference() &&
         int64_t(tensor.nbytes()) >= kLeastKeptBytes && tensor.is_non_overlapping_and_dense() &&
         reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kKeptAlignment == 0;
}

}  // namespace zeroshard
