#pragma once
#include <ATen/core/Tensor.h>

#include <string>

// Storages whose memory can be detached and attached while tensors keep pointing at the storages.
//
// Note [Stable storage]
// Each parameter of an engine has one StorageImpl for as long as the engine has the parameter. (While users hold the
// parameter gathered, it has a second one: see Note [Views that users keep] in unit/unit_param.h.) The parameter is a
// view of this StorageImpl, and so are the tensors that autograd saves (such as weight.t()) and the tensors that users
// make (detach()). Resharding takes the memory away, and reading any of these views then throws an error that names the
// parameter. Unsharding puts memory behind the same StorageImpl again. Then every view is valid, without a copy.
namespace zeroshard {

// Creates a storage of `bytes` bytes that has no memory yet. Until attach_memory(), reading a view of it throws an
// error with `message`.
c10::Storage make_detachable_storage(int64_t bytes, at::Device device, const std::string& message);

// Attaches memory, which the caller owns, to the storage. `data` may be null if the views have no elements.
void attach_memory(const c10::Storage& storage, void* data);
// Detaches the memory. After that, reading a view of the storage throws an error with the storage's message.
void detach_memory(const c10::Storage& storage);
// Sets the message of a storage that has no memory.
void set_message(const c10::Storage& storage, const std::string& message);

// Ends an engine's use of the storage, while views keep the storage. The memory of the storage becomes `data`, a part
// of the memory of `owner`, and the storage keeps `owner` alive. After that, is_detachable() returns false for the
// views.
void leave_memory(const c10::Storage& storage, void* data, at::Tensor owner);

// Ends an engine's use of a storage without memory, while views keep the storage. Reading a view throws `message`.
// After that, is_detachable() returns false for the views.
void abandon(const c10::Storage& storage, const std::string& message);

// Creates the storage of a tensor whose values a ParameterReader provides. The storage belongs to no engine and never
// gets memory.
c10::Storage make_storage_without_memory(int64_t bytes, at::Device device);

// Returns whether `tensor` has a storage of make_detachable_storage(), as an engine's parameters and the stand-ins of
// their gradients have. Returns false after leave_memory() or abandon().
bool is_detachable(const at::Tensor& tensor);

// Returns a contiguous tensor over the whole storage. The storage need not have memory.
at::Tensor view_of(const c10::Storage& storage, at::ScalarType type, at::IntArrayRef sizes);

// Makes `tensor` a view of `storage` from element `offset` on. The shape, dtype and device of `tensor` do not change.
void point_at(const at::Tensor& tensor, const c10::Storage& storage, int64_t offset);

}  // namespace zeroshard
