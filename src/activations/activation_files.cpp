#include "activations/activation_files.h"

#include <ATen/ops/from_blob.h>

#include <utility>

namespace zeroshard {

class ActivationFiles::Kept final : public KeptTensor {
 public:
  Kept(std::shared_ptr<RecordStore> store, const at::Tensor& tensor)
      : lay_(tensor),
        store_(std::move(store)),
        id_(store_->put({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()})) {}
  ~Kept() override { store_->drop(id_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  at::Tensor bring_back() override {
    std::byte* const memory = store_->get(id_).release();
    return at::from_blob(
        memory, lay_.sizes, lay_.strides, [](void* data) { FreeMemory()(static_cast<std::byte*>(data)); },
        at::TensorOptions().dtype(lay_.type));
  }
  bool lies_like(const at::Tensor& tensor) const { return lay_.is_of(tensor); }

 private:
  Lay lay_;
  std::shared_ptr<RecordStore> store_;
  RecordStore::Id id_;
};

std::shared_ptr<KeptTensor> ActivationFiles::keep(const at::Tensor& tensor) {
  if (!can_leave(tensor, at::kCPU)) return nullptr;
  return known_.of(tensor, [&] { return std::make_shared<Kept>(files_->store(), tensor); });
}

}  // namespace zeroshard
