#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm.h"

namespace zeroshard {

// Checks that tensors which every rank holds whole have the same bits on all ranks. Otherwise throws StateError on
// every rank with the first tensor that differs and the ranks in the minority; `advice` ends the message. Collective;
// reads every byte once and exchanges eight bytes per tensor.
void check_replicas(Comm& comm, const std::vector<std::pair<std::string, at::Tensor>>& replicas,
                    std::string_view advice);

}  // namespace zeroshard
