#pragma once
#include <ATen/core/Tensor.h>

#include <string>

// Storages whose memory comes and goes while tensors keep pointing at them.
//
// Note [Stable storage]
// Each parameter of an engine has one StorageImpl for as long as the engine has the parameter. The parameter is a view
// of it, and so are the tensors that autograd saves (such as weight.t()) and the tensors that users make (detach()).
// Resharding takes the memory away, and reading any of these views throws an error that names the parameter. Unsharding
// puts memory behind the same StorageImpl again, and every view is valid without a copy.
namespace zeroshard {

// A storage of `bytes` bytes with no memory behind it. Reading a view of it throws an error with `message`.
c10::Storage make_swapped_storage(int64_t bytes, at::Device device, const std::string& message);

// Puts memory that the caller owns behind the storage. `data` may be null for views without elements.
void put_memory(const c10::Storage& storage, void* data);
// Takes the memory away: from here on reading a view throws the storage's message.
void take_memory(const c10::Storage& storage);
void set_message(const c10::Storage& storage, const std::string& message);

// Hands the storage to whoever views it: `data` lies in the memory of `owner`, which the storage keeps alive. The
// storage counts as an ordinary one from here on.
void leave_memory(const c10::Storage& storage, void* data, at::Tensor owner);

// Leaves a storage without memory to whoever views it: reading throws `message`, and no engine decides about it.
void abandon(const c10::Storage& storage, const std::string& message);

// Storage for a tensor that gets its values from elsewhere: it belongs to no engine and never gets memory.
c10::Storage make_storage_without_memory(int64_t bytes, at::Device device);

// Whether an engine decides about the memory of `tensor`.
bool is_swapped(const at::Tensor& tensor);

// A contiguous tensor over the whole storage, which may have no memory.
at::Tensor view_of(const c10::Storage& storage, at::ScalarType type, at::IntArrayRef sizes);

// Points `tensor` at `storage` from element `offset` on. Its shape, dtype and device stay.
void point_at(const at::Tensor& tensor, const c10::Storage& storage, int64_t offset);

}  // namespace zeroshard
