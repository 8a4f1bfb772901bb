#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm.h"

namespace zeroshard {

// Checks that tensors which every rank holds whole have the same bits on all. Throws StateError on every rank
// otherwise, naming the first that differs and the ranks that are in the minority; `advice` follows. Collective; reads
// every byte once and exchanges eight bytes a tensor.
void check_replicas(Comm& comm, const std::vector<std::pair<std::string, at::Tensor>>& replicas,
                    std::string_view advice);

}  // namespace zeroshard
