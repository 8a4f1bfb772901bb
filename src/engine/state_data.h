#pragma once
#include <ATen/core/Tensor.h>

#include "checkpoint/slice_data.h"
#include "group/sharded_group.h"

// What an engine saves and loads, as checkpoints see it.
namespace zeroshard {

// The bytes of a contiguous tensor on any device; keeps the tensor alive.
std::shared_ptr<SliceData> tensor_data(const at::Tensor& tensor);

// One optimizer state of a group, for all elements that this rank updates. The group outlives it.
inline constexpr int kMasterWeights = -1;
std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int slot_or_master);

}  // namespace zeroshard
