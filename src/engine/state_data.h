#pragma once
#include <ATen/core/Tensor.h>

#include "checkpoint/device_copies.h"
#include "checkpoint/slice_data.h"
#include "group/sharded_group.h"

// What an engine saves and loads, as checkpoints see it.
namespace zeroshard {

// The bytes of a contiguous tensor on any device; keeps the tensor alive.
std::shared_ptr<SliceData> tensor_data(const at::Tensor& tensor);

// The parameters of a group that this rank updates; of a frozen group, those that it keeps. The group outlives it.
std::shared_ptr<SliceData> parameter_data(const ShardedGroup& group);

// One optimizer state of a group, a slot or kMasterWeights, for all elements that this rank updates. The group outlives
// it. `is_engines`: nobody writes to it but by borrowing from the group. To read master weights that lie elsewhere
// than in memory is to take what users have written to the group's parameters, as ShardedOptimizer::take_writes() does:
// so a save need not read them twice.
std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int state, bool is_engines);

// The same, read on any thread from where it lies while training goes on: until SliceData::end_reading(), or its end,
// who borrows the states to write waits (Array::hold()). It does not take users' writes to parameters.
std::shared_ptr<SliceData> held_data(const ShardedGroup& group, int state);
// This rank's parameters in files; or fp32 ones that it updates, on the host, where they are their own master weights.
std::shared_ptr<SliceData> held_data(const ShardedGroup& group);

// The copies of a device, on a stream of their own. Null for the CPU.
std::unique_ptr<DeviceCopies> device_copies(c10::Device device);

}  // namespace zeroshard
