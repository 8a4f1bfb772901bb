#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zeroshard {

// The memory layout of a dense tensor.
struct Lay {
  std::vector<int64_t> sizes, strides;
  at::ScalarType type;
  int64_t bytes;

  explicit Lay(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        type(tensor.scalar_type()),
        bytes(int64_t(tensor.nbytes())) {}
  bool is_of(const at::Tensor& tensor) const {
    return tensor.scalar_type() == type && tensor.sizes() == sizes && tensor.strides() == strides;
  }
  at::Tensor empty_on(c10::Device device) const {
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(type).device(device));
  }
};

// Finds the kept copy of a tensor, so that a tensor that several torch modules give to keep() is kept once. `Kept` must
// have lies_like(tensor), which returns whether the copy has the tensor's layout. Thread-safe.
template <typename Kept>
class KeptTensors {
 public:
  // Returns the kept copy of `tensor`. If there is none, calls `make`, and remembers and returns the copy that it
  // makes.
  template <typename Make>
  std::shared_ptr<Kept> of(const at::Tensor& tensor, const Make& make) {
    const std::lock_guard lock(mutex_);
    if (auto known = find(tensor)) return known;
    std::shared_ptr<Kept> kept = make();
    known_.push_back(
        {tensor.storage().getWeakStorageImpl(), tensor.const_data_ptr(), uint32_t(tensor._version()), kept});
    return kept;
  }

 private:
  struct Known {  // a tensor that is kept and may still be in memory
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    uint32_t version;
    std::weak_ptr<Kept> kept;
  };

  // Returns null if the tensor has no kept copy. Compares the storage, the address, the version and the layout. The
  // address alone would not do, because the address of a freed tensor can be used again. The version is compared,
  // because a tensor that was changed in place has another value.
  std::shared_ptr<Kept> find(const at::Tensor& tensor) {
    std::erase_if(known_, [](const Known& known) { return known.storage.expired() || known.kept.expired(); });
    for (const Known& known : known_) {
      if (known.storage._unsafe_get_target() != tensor.storage().unsafeGetStorageImpl()) continue;
      if (known.data != tensor.const_data_ptr() || known.version != uint32_t(tensor._version())) continue;
      auto kept = known.kept.lock();
      if (kept && kept->lies_like(tensor)) return kept;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::vector<Known> known_;
};

}  // namespace zeroshard
