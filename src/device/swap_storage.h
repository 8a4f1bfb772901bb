#pragma once
#include <ATen/core/Tensor.h>

#include <string>

// Storages whose memory comes and goes while tensors keep pointing at them.
//
// Note [Stable storage]
// A unit's full buffer is one StorageImpl that lives as long as the unit. Parameters are views of it, and so are the
// tensors that autograd saves (such as weight.t()). Resharding takes the memory away; unsharding in backward puts
// memory behind the same StorageImpl again, and every saved view is valid without a copy.
namespace zeroshard {

// A storage of `bytes` bytes with no memory behind it.
c10::Storage make_empty_storage(int64_t bytes, at::Device device);

// Puts memory that the caller owns behind the storage; nullptr takes it away. Reading a view of an empty storage
// throws.
void set_memory(const c10::Storage& storage, void* data, at::Device device);

// A storage without memory; reading a tensor that points at it throws an error with `message`.
c10::Storage make_guard_storage(int64_t bytes, at::Device device, const std::string& message);

// Storage for a tensor that gets its values from elsewhere: it belongs to no engine and never gets memory.
c10::Storage make_storage_without_memory(int64_t bytes, at::Device device);

// Whether the memory of `tensor` comes and goes: an engine has it, behind an empty or a guard storage.
bool is_swapped(const at::Tensor& tensor);

// Points `tensor` at `storage` from element `offset` on. Its shape, dtype and device stay.
void point_at(const at::Tensor& tensor, const c10::Storage& storage, int64_t offset);

}  // namespace zeroshard
