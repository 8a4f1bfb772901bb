#include "unit/unit_param.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/format.h"
#include "device/detachable_storage.h"
#include "device/dtype.h"
#include "device/flat_buffer.h"

namespace zeroshard {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

c10::Storage make_storage(const std::string& name, int64_t bytes, at::Device device) {
  return make_detachable_storage(
      bytes, device,
      concat("parameter '", name,
             "' is sharded: outside of forward, read it inside `with zeroshard.gathered(...)`, and clone() what shall "
             "last "
             "longer. If the forward of another module reads it, name in zeroshard.unit_classes a class whose modules "
             "contain both"));
}

}  // namespace

UnitParam::UnitParam(const ParamSpec& spec, std::vector<at::Tensor> tensors, at::Device device)
    : name_(spec.name()), tensors_(std::move(tensors)) {
  const c10::Storage storage = make_storage(name_, spec.numel() * element_size(spec.dtype), device);
  for (at::Tensor& tensor : tensors_) {
    const auto type = is_floating_point(spec.dtype) ? to_scalar_type(spec.dtype) : tensor.scalar_type();
    view_ = view_of(storage, type, spec.shape);
    tensor.set_data(view_);
  }
}

UnitParam::~UnitParam() {
  if (!view_.defined()) return;
  end_hold({});
  detach_memory(view_.storage());  // the user's tensors can outlive the memory
  try {
    set_message(view_.storage(), concat("parameter '", name_,
                                        "' has no values any more: the engine that had it is gone, and did not return "
                                        "it (Engine::return_unit)"));
  } catch (const std::bad_alloc&) {  // reading a view then throws the message of a sharded parameter
  }
}

bool UnitParam::owns(const at::Tensor& tensor) const {
  const c10::StorageImpl* const storage = storage_of(tensor);
  return storage == storage_of(view_) || (own_ && storage == own_->storage.unsafeGetStorageImpl());
}

void UnitParam::put(void* memory) {
  memory_ = memory;
  attach_memory(view_.storage(), memory);
  if (own_) attach_memory(own_->storage, memory);
}

void UnitParam::take() {
  memory_ = nullptr;
  detach_memory(view_.storage());
  if (own_) detach_memory(own_->storage);
}

void UnitParam::point_at_storage(const c10::Storage& storage) {
  for (const at::Tensor& tensor : tensors_)
    if (!is_elsewhere(tensor)) point_at(tensor, storage, 0);
  point_at(view_, storage, 0);
}

void UnitParam::begin_hold() {
  Own own{view_.storage(), {}};
  const c10::Storage storage = make_storage(name_, int64_t(own.storage.nbytes()), view_.device());
  if (memory_ != nullptr) attach_memory(storage, memory_);
  point_at_storage(storage);
  for (const at::Tensor& tensor : tensors_) {
    const c10::VariableVersion& version = own.versions.emplace_back(tensor.unsafeGetTensorImpl()->version_counter());
    if (version.enabled())  // a tensor that was made in inference mode has no version counter
      tensor.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(version.current_version()));
  }
  own_ = std::move(own);
}

bool UnitParam::has_kept_views() const {
  const auto own = std::count_if(tensors_.begin(), tensors_.end(),
                                 [&](const at::Tensor& each) { return storage_of(each) == storage_of(view_); });
  return own_ && int64_t(view_.storage().use_count()) > own + 1;
}

void UnitParam::end_hold(const at::Tensor& memory) {
  if (!own_) return;
  const bool leaves = memory.defined() && has_kept_views();
  const c10::Storage held = view_.storage();
  if (leaves) {
    leave_memory(held, memory_, memory);
  } else {
    detach_memory(held);
  }
  point_at_storage(own_->storage);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    c10::TensorImpl* const impl = tensors_[i].unsafeGetTensorImpl();
    if (!own_->versions[i].enabled()) continue;
    own_->versions[i].set_version(impl->version_counter().current_version());
    impl->set_version_counter(own_->versions[i]);
  }
  own_.reset();
}

bool UnitParam::is_elsewhere(const at::Tensor& tensor) const {
  return storage_of(tensor) != storage_of(view_) || tensor.storage_offset() != 0 || tensor.sizes() != view_.sizes() ||
         tensor.strides() != view_.strides();
}

// Returns whether the storage has other memory than the unit has attached to it. This happens if a user calls
// share_memory_(), which keeps the storage but moves its contents to shared memory. Returns false if the unit has
// attached no memory.
bool UnitParam::has_other_memory() const {
  return memory_ != nullptr && view_.storage().data_ptr().get() != memory_;
}

bool UnitParam::is_moved() const {
  return has_other_memory() ||
         std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& tensor) { return is_elsewhere(tensor); });
}

bool UnitParam::prepare_take_back() {
  const at::Tensor* first = nullptr;
  try {
    for (at::Tensor& tensor : tensors_) {
      if (!is_elsewhere(tensor)) continue;
      // If the user exchanged the memory of two parameters, this tensor's values lie in the memory of the other
      // parameter. They are copied, because take_back() of the other parameter might come first and overwrite them.
      if (is_detachable(tensor)) tensor.set_data(tensor.detach().clone());
      if (tensor.sizes() != view_.sizes()) return false;
      if (first && !at::equal(*first, tensor)) return false;
      first = &tensor;
    }
  } catch (const c10::Error&) {  // the tensor belongs to a sharded unit, or is on a device that does not exist
    return false;
  }
  return true;
}

void UnitParam::take_back(bool values) {
  const at::NoGradGuard no_grad;
  if (has_other_memory()) {
    if (values) {
      const at::Tensor own = view_memory(memory_, view_.numel(), view_.scalar_type(), view_.device());
      own.copy_(view_.view({-1}));
    }
    attach_memory(view_.storage(), memory_);
  }
  for (const at::Tensor& tensor : tensors_) {
    if (!values || !is_elsewhere(tensor)) continue;
    view_.copy_(tensor.detach());
    break;  // one tensor is enough, because prepare_take_back() has found the moved tensors to be equal
  }
  point_back();
}

void UnitParam::point_back() {
  for (at::Tensor& tensor : tensors_)
    if (is_elsewhere(tensor)) tensor.set_data(view_);
}

void UnitParam::give_back(const at::Tensor& values) {
  for (at::Tensor& tensor : tensors_) {  // tied tensors share the memory of `values`
    if (!is_elsewhere(tensor))
      tensor.set_data(values.view(tensor.scalar_type()).view(view_.sizes()));
    else if (is_detachable(tensor))
      tensor.set_data(tensor.detach().clone());
  }
  // Views of the storages that users keep share the memory of `values`, too.
  leave_memory(view_.storage(), values.data_ptr(), values);
  if (own_) leave_memory(own_->storage, values.data_ptr(), values);
  own_.reset();
  view_.reset();
  tensors_.clear();
}

}  // namespace zeroshard
