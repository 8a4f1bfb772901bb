#include "support/accelerator/operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "support/accelerator/device.h"
#include "support/accelerator/fallback.h"
#include "support/accelerator/memory.h"

namespace zeroshard::accelerator {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_ours(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// Without an index: the current device.
std::optional<at::Device> device_to_set(std::optional<at::Device> where) {
  return where && where->has_index() ? where : std::nullopt;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> where, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device_to_set(where));
  return at::detail::empty_generic(sizes, &device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> where, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device_to_set(where));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = static_cast<size_t>(impl->numel() + impl->storage_offset()) * self.element_size();
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  strides.empty() && !sizes.empty() ? impl->set_sizes_contiguous(sizes) : impl->set_sizes_and_strides(sizes, strides);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage(self, std::move(source), 0, {numel}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void copy_on_device(const at::Tensor& from, const at::Tensor& to) {
  Streams& streams = Streams::get();
  const StreamKey stream = current_stream(to.device().index());
  if (from.device() != to.device())
    streams.wait_on_stream(stream, streams.record(current_stream(from.device().index())));
  streams.enqueue(stream, WorkKind::kCopy, "copy", {access_of(from, false), access_of(to, true)},
                  [a = real_tensor(from), b = real_tensor(to)] { b.copy_(a); });
  if (from.device() != to.device())
    streams.wait_on_stream(current_stream(from.device().index()), streams.record(stream));
}

// As CUDA: with pinned memory and non_blocking the copy reads or writes the host's memory when the stream comes to it;
// otherwise the host waits.
void copy_from_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const StreamKey stream = current_stream(to.device().index());
  const bool late = non_blocking && from.is_pinned();
  Streams::get().enqueue(stream, WorkKind::kCopy, "copy from the host", {access_of(to, true)},
                         [a = from.view(from.sizes()), b = real_tensor(to)] { b.copy_(a); });
  if (late) return use_pinned(from.const_data_ptr(), Streams::get().record(stream));
  Streams::get().wait_on_host(stream);
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const StreamKey stream = current_stream(from.device().index());
  const bool late = non_blocking && to.is_pinned();
  Streams::get().enqueue(stream, WorkKind::kCopy, "copy to the host", {access_of(from, false)},
                         [a = real_tensor(from), b = to.view(to.sizes())] { b.copy_(a); });
  if (late) return use_pinned(to.const_data_ptr(), Streams::get().record(stream));
  Streams::get().wait_on_host(stream);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::NoGradGuard no_grad;
  if (to.numel() == 0) return to;
  const at::Tensor from = self.sizes() == to.sizes() ? self : self.expand_as(to);
  if (is_ours(from) && is_ours(to)) {
    copy_on_device(from, to);
  } else if (is_ours(to)) {
    copy_from_host(from, to, non_blocking);
  } else {
    copy_to_host(from, to, non_blocking);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, /*non_blocking=*/false);
}

at::Scalar read_scalar(const at::Tensor& self) {
  return self.to(at::kCPU).item();
}

// A tensor of the host may become one of the device in place, as with CUDA.
bool may_become(const at::Tensor&, const at::Tensor&) {
  return true;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  use_on_stream(self.storage().data_ptr(), stream);
}

}  // namespace

void resize_storage(const c10::Storage& storage, size_t bytes) {
  auto* const impl = storage.unsafeGetStorageImpl();
  const c10::OptionalDeviceGuard guard(storage.device());
  c10::DataPtr data = device_allocator().allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    const auto from = reinterpret_cast<uintptr_t>(storage.data()), to = reinterpret_cast<uintptr_t>(data.get());
    Streams::get().enqueue(current_stream(storage.device().index()), WorkKind::kCopy, "resize",
                           {{from, from + kept, false}, {to, to + kept, true}}, [from, to, kept] {
                             std::memcpy(real_address(reinterpret_cast<void*>(to)),
                                         real_address(reinterpret_cast<void*>(from)), kept);
                           });
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

void register_operators() {
  using torch::CppFunction;
  static auto& all = *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(CppFunction::makeFromBoxedFunction<&fallback>());
  static auto& own =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own.impl("empty.memory_format", &empty);
  own.impl("empty_strided", &empty_strided);
  own.impl("resize_", &resize);
  own.impl("set_.source_Storage_storage_offset", &set_storage);
  own.impl("set_.source_Storage", &set_whole_storage);
  own.impl("set_.source_Tensor", &set_tensor);
  own.impl("as_strided", &at::native::as_strided_tensorimpl);
  own.impl("view", &at::native::view);
  own.impl("_reshape_alias", &at::native::_reshape_alias);
  own.impl("unfold", &at::native::unfold);
  own.impl("_copy_from", &copy_from);
  own.impl("_copy_from_and_resize", &copy_from_and_resize);
  own.impl("_local_scalar_dense", &read_scalar);
  own.impl("record_stream", &record_stream);
  own.impl("_has_compatible_shallow_copy_type", &may_become);
  // Composite kernels of these would come before the fallback.
  for (const char* name : {"native_layer_norm", "native_layer_norm_backward", "mse_loss", "isfinite"})
    own.impl(name, CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace zeroshard::accelerator
