#include "device/swap_storage.h"

#include <c10/core/StorageImpl.h>

namespace zeroshard {
namespace {

// Known by its type alone.
struct SwappedStorage final : c10::StorageImpl {
  SwappedStorage(int64_t bytes, at::Device device)
      : c10::StorageImpl(use_byte_size_t(), size_t(bytes), at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                         /*resizable=*/false) {}
};

}  // namespace

c10::Storage make_storage_without_memory(int64_t bytes, at::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size_t(bytes),
                                                            at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                                            /*resizable=*/false));
}

c10::Storage make_empty_storage(int64_t bytes, at::Device device) {
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>(c10::make_intrusive<SwappedStorage>(bytes, device)));
}

bool is_swapped(const at::Tensor& tensor) {
  return tensor.has_storage() &&
         dynamic_cast<const SwappedStorage*>(tensor.storage().unsafeGetStorageImpl()) != nullptr;
}

void set_memory(const c10::Storage& storage, void* data, at::Device device) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, device));
}

c10::Storage make_guard_storage(int64_t bytes, at::Device device, const std::string& message) {
  c10::Storage storage = make_empty_storage(bytes, device);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

void point_at(const at::Tensor& tensor, const c10::Storage& storage, int64_t offset) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset);
}

}  // namespace zeroshard
