#pragma once
#include <string_view>

#include "comm/comm.h"

// What every implementation of Comm demands of its arguments. Each throws ValueError naming `tag`.
namespace zeroshard {

void check_all_gather(const Span& full, const ConstSpan& shard, int world_size, std::string_view tag);
void check_reduce_scatter(const Span& out, const ConstSpan& full, int world_size, std::string_view tag);
void check_all_to_all(const Span& out, const ConstSpan& in, int world_size, std::string_view tag);
void check_all_reduce(const Span& data, std::string_view tag);
void check_broadcast(const Span& data, int root, int world_size, std::string_view tag);
// `scratch` counts only when `needs_scratch`.
void check_exchange(const ConstSpan& full, const Span& scratch, bool needs_scratch, int world_size,
                    std::string_view tag);
void check_allocate(int64_t bytes, std::string_view tag);

}  // namespace zeroshard
