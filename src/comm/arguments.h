#pragma once
#include <span>
#include <string_view>

#include "comm/comm.h"
#include "comm/op.h"

// Functions that every implementation of Comm uses to check and to describe its calls. The functions check_*() throw
// ValueError if an argument is wrong. The message names `tag`.
namespace zeroshard {

void check_all_gather(const Span& full, const ConstSpan& shard, int world_size, std::string_view tag);
void check_reduce_scatter(const Span& out, const ConstSpan& full, int world_size, std::string_view tag);
void check_all_to_all(const Span& out, const ConstSpan& in, int world_size, std::string_view tag);
void check_all_to_all_v(const Span& out, const ConstSpan& in, std::span<const int64_t> counts, int rank, int world_size,
                        std::string_view tag);
void check_all_reduce(const Span& data, std::string_view tag);
void check_broadcast(const Span& data, int root, int world_size, std::string_view tag);
// `scratch` is checked only if `needs_scratch`.
void check_exchange(const ConstSpan& full, const Span& scratch, bool needs_scratch, int world_size,
                    std::string_view tag);
void check_allocate(int64_t bytes, std::string_view tag);

// Positions in the buffers of an all_to_all_v with these `counts`. sent_before() returns how many elements `from` sends
// to ranks before `to`, which is where the elements for `to` begin in the input of `from`. received_before() returns
// how many elements `to` receives from ranks before `from`, which is where the elements of `from` begin in the output
// of `to`.
int64_t sent_before(std::span<const int64_t> counts, int world_size, int from, int to);
int64_t received_before(std::span<const int64_t> counts, int world_size, int from, int to);
// Returns the Op of an all_to_all_v. The Op contains a hash of `counts`, so that ranks notice if they passed different
// counts.
Op all_to_all_v_op(std::span<const int64_t> counts, DType dtype, std::string_view tag);

}  // namespace zeroshard
