#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm.h"

namespace zeroshard {

// Compares tensors that every rank holds whole. Throws StateError on every rank if one of them does not have the same
// bits on all ranks. The message names the first tensor that differs, the ranks that have its most frequent value, and
// the other ranks, and ends with `advice`. Collective. Hashes every byte once, and exchanges the hashes, which have
// eight bytes per tensor and rank.
void check_same_on_ranks(Comm& comm, const std::vector<std::pair<std::string, at::Tensor>>& replicas,
                         std::string_view advice);

}  // namespace zeroshard
