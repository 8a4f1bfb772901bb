#pragma once
#include <string_view>

#include "comm/comm.h"

// The requirements of every Comm on its arguments. Each function throws ValueError naming `tag`.
namespace zeroshard {

void check_all_gather(const Span& full, const ConstSpan& shard, int world_size, std::string_view tag);
void check_reduce_scatter(const Span& out, const ConstSpan& full, int world_size, std::string_view tag);
void check_all_to_all(const Span& out, const ConstSpan& in, int world_size, std::string_view tag);
void check_all_reduce(const Span& data, std::string_view tag);
void check_broadcast(const Span& data, int root, int world_size, std::string_view tag);
// `scratch` is checked only if `needs_scratch`.
void check_exchange(const ConstSpan& full, const Span& scratch, bool needs_scratch, int world_size,
                    std::string_view tag);
void check_allocate(int64_t bytes, std::string_view tag);

}  // namespace zeroshard
