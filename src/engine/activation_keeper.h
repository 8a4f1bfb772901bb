#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "comm/comm.h"
#include "memory/ledger.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Where the tensors of Engine::keep() lie. Any thread may use it.
class ActivationKeeper {
 public:
  // What is kept stays as long as somebody has it.
  virtual ~ActivationKeeper() = default;
  virtual std::shared_ptr<KeptTensor> keep(const at::Tensor& tensor) = 0;
  // What was kept last will be asked for soon.
  virtual void begin_backward() = 0;
};

inline constexpr int64_t kLeastKeptBytes = 4096;  // what is smaller takes a block of a file anyway
inline constexpr uintptr_t kKeptAlignment = 64;

// Whether the bytes say all of a tensor of `device`, are worth the way, and come back to memory that begins as torch's
// own: kernels may sum in another order where it begins elsewhere.
inline bool can_leave(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.device() == device && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() && !tensor.is_inference() &&
         int64_t(tensor.nbytes()) >= kLeastKeptBytes && tensor.is_non_overlapping_and_dense() &&
         reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kKeptAlignment == 0;
}

// As zeroshard.offload.activations says; null where tensors stay. Collective over `comm`: where a rank cannot have its
// file, every rank throws ConfigError with rank, directory and reason. The ledger counts the buffers. `on_failure` is
// told once of a file that fails, before the error is thrown.
std::unique_ptr<ActivationKeeper> make_activation_keeper(const EngineOptions& options, Comm& comm, Ledger& ledger,
                                                         std::function<void(const std::string& message)> on_failure);

}  // namespace zeroshard
