#include "device/detachable_storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <utility>

namespace zeroshard {
namespace {

// A storage of a type of its own, by which is_detachable() recognises it.
struct DetachableStorage final : c10::StorageImpl {
  DetachableStorage(int64_t bytes, at::Device device)
      : c10::StorageImpl(use_byte_size_t(), size_t(bytes), at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                         /*resizable=*/false) {}
  bool is_left = false;  // set by leave_memory() or abandon()
};

// Returns the flag that makes reading a storage throw. LibTorch 2.11 and 2.12 have a function that sets the flag, but
// none that clears it. The code below gets access to the private flag because an explicit instantiation may name a
// private member.
bool& throws_when_read(c10::StorageImpl& storage);
template <bool c10::StorageImpl::*member>
struct PrivateFlag {
  friend bool& throws_when_read(c10::StorageImpl& storage) { return storage.*member; }
};
template struct PrivateFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

void set_data(c10::StorageImpl& storage, at::DataPtr data, bool throws) {
  throws_when_read(storage) = throws;
  storage.set_data_ptr_noswap(std::move(data));  // this call also makes the storage evaluate the flag
}

}  // namespace

c10::Storage make_storage_without_memory(int64_t bytes, at::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size_t(bytes),
                                                            at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                                            /*resizable=*/false));
}

c10::Storage make_detachable_storage(int64_t bytes, at::Device device, const std::string& message) {
  c10::Storage storage(c10::intrusive_ptr<c10::StorageImpl>(c10::make_intrusive<DetachableStorage>(bytes, device)));
  set_message(storage, message);
  return storage;
}

void attach_memory(const c10::Storage& storage, void* data) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  set_data(impl, at::DataPtr(data, impl.device()), /*throws=*/false);
}

void detach_memory(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  set_data(impl, at::DataPtr(nullptr, impl.device()), /*throws=*/true);
}

void set_message(const c10::Storage& storage, const std::string& message) {
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void leave_memory(const c10::Storage& storage, void* data, at::Tensor owner) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  auto context = std::make_unique<at::Tensor>(std::move(owner));
  const auto free = [](void* kept) { delete static_cast<at::Tensor*>(kept); };
  set_data(impl, at::DataPtr(data, context.release(), free, impl.device()), /*throws=*/false);
  static_cast<DetachableStorage&>(impl).is_left = true;
}

void abandon(const c10::Storage& storage, const std::string& message) {
  set_message(storage, message);
  static_cast<DetachableStorage&>(*storage.unsafeGetStorageImpl()).is_left = true;
}

bool is_detachable(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  const auto* const storage = dynamic_cast<const DetachableStorage*>(tensor.storage().unsafeGetStorageImpl());
  return storage != nullptr && !storage->is_left;
}

at::Tensor view_of(const c10::Storage& storage, at::ScalarType type, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(type).device(storage.device()));
  point_at(tensor, storage, 0);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void point_at(const at::Tensor& tensor, const c10::Storage& storage, int64_t offset) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset);
}

}  // namespace zeroshard
