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
// saved elements are fp32. The group must outlive the result. `writers_wait` says that all writers of the state borrow
// it from the group, and so wait for copies of begin_read(). If master weights are in files, or on two tiers, the
// master weights that read() returns include what users have written to the group's parameters. Unless the parameters
// are fp32, read() also copies these writes to the master weights themselves, like ShardedOptimizer::take_writes(). So
// a save need not read the weights twice.
std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int state, bool writers_wait);

// Like state_data(), but another thread may read the state from where it is while training continues. The states must
// have a hold (Array::hold()), as states in files have. Until end_reading() or the destruction of the result, a caller
// that borrows the states to write must wait. Reading does not take users' writes to parameters. The result cannot be
// written.
std::shared_ptr<SliceData> held_data(const ShardedGroup& group, int state);
// Does the same for parameters. If the parameters are in files, the result has all that this rank keeps of the group.
// If they are in memory, it has those that this rank updates. In memory the parameters must be their own master
// weights, because they are held with the states.
std::shared_ptr<SliceData> held_parameter_data(const ShardedGroup& group);

// Returns an object that orders copies between host memory and `device` on a stream of its own; null for the CPU.
std::unique_ptr<DeviceCopies> device_copies(c10::Device device);

}  // namespace zeroshard
