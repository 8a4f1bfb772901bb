#pragma once
#include <ATen/core/Tensor.h>

#include "checkpoint/device_copies.h"
#include "checkpoint/slice_data.h"
#include "group/sharded_group.h"

// Gives checkpoints access to the state that an engine saves and loads.
namespace zeroshard {

// Accesses the bytes of a contiguous tensor on any device. Keeps the tensor alive.
std::shared_ptr<SliceData> tensor_data(const at::Tensor& tensor);

// Accesses the parameters of a trained group that this rank updates, or the parameters of a frozen group that this rank
// keeps. The group must outlive the result.
std::shared_ptr<SliceData> parameter_data(const ShardedGroup& group);

// Accesses one optimizer state of a group (a slot or kMasterWeights), for all elements that this rank updates. The
// group must outlive the result. `is_engines` says that nobody writes to the state but by borrowing it from the group.
// Reading offloaded master weights also takes the user's writes to the group's parameters, like
// ShardedOptimizer::take_writes(), so that a save need not read the weights twice.
std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int state, bool is_engines);

// Like state_data(), but any thread may read the state in its place while training continues. Until the result's
// end_reading() or destruction, a caller that borrows the states to write must wait (Array::hold()). Reading does not
// take users' writes to parameters.
std::shared_ptr<SliceData> held_data(const ShardedGroup& group, int state);
// Accesses this rank's parameters in files, or fp32 parameters in host memory that this rank updates and that are their
// own master weights.
std::shared_ptr<SliceData> held_data(const ShardedGroup& group);

// Returns the copies of a device, on their own stream; null for the CPU.
std::unique_ptr<DeviceCopies> device_copies(c10::Device device);

}  // namespace zeroshard
