#pragma once
#include <ATen/core/Tensor.h>

#include "checkpoint/slice_data.h"
#include "group/sharded_group.h"

// What an engine saves and loads, as checkpoints see it.
namespace zeroshard {

// A contiguous tensor on any device, which it keeps alive.
std::shared_ptr<SliceData> tensor_data(const at::Tensor& tensor);

// One state of the optimizer for all elements that this rank updates of a group, which outlives it.
inline constexpr int kMasterWeights = -1;
std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int slot_or_master);

}  // namespace zeroshard
