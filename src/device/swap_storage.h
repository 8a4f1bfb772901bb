#pragma once
#include <ATen/core/Tensor.h>

#include <string>

// Storages whose memory can be detached and attached while tensors keep pointing at them.
//
// Note [Stable storage]
// Each parameter of an engine has one StorageImpl for as long as the engine has the parameter. The parameter is a view
// of it, and so are the tensors that autograd saves (such as weight.t()) and the tensors that users make (detach()).
// Resharding takes the memory away, and reading any of these views throws an error that names the parameter. Unsharding
// puts memory behind the same StorageImpl again, and every view is valid without a copy.
namespace zeroshard {

// Creates a storage of `bytes` bytes without memory. Reading a view of it throws an error with `message`.
c10::Storage make_swapped_storage(int64_t bytes, at::Device device, const std::string& message);

// Attaches memory that the caller owns to the storage. `data` may be null for views without elements.
void put_memory(const c10::Storage& storage, void* data);
// Detaches the memory. After that, reading a view throws the storage's message.
void take_memory(const c10::Storage& storage);
void set_message(const c10::Storage& storage, const std::string& message);

// Gives up the storage, which its views keep. The storage's memory becomes `data`, a part of the memory of `owner`, and
// the storage keeps `owner` alive. After that, the storage counts as an ordinary one.
void leave_memory(const c10::Storage& storage, void* data, at::Tensor owner);

// Gives up a storage without memory, which its views keep. Reading a view throws `message`. After that, the storage
// belongs to no engine.
void abandon(const c10::Storage& storage, const std::string& message);

// Creates the storage of a tensor whose values come from a ParameterReader. The storage belongs to no engine and never
// gets memory.
c10::Storage make_storage_without_memory(int64_t bytes, at::Device device);

// Returns whether an engine manages the memory of `tensor`.
bool is_swapped(const at::Tensor& tensor);

// Returns a contiguous tensor over the whole storage, which may have no memory.
at::Tensor view_of(const c10::Storage& storage, at::ScalarType type, at::IntArrayRef sizes);

// Points `tensor` at `storage` from element `offset` on. Its shape, dtype and device do not change.
void point_at(const at::Tensor& tensor, const c10::Storage& storage, int64_t offset);

}  // namespace zeroshard
