#include "comm/arguments.h"

#include "base/check.h"

namespace zeroshard {
namespace {

void check_span(const ConstSpan& span, const char* name, std::string_view operation, std::string_view tag) {
  ZS_CHECK(span.numel >= 0, operation, "('", tag, "'): ", name, " has ", span.numel, " elements");
  ZS_CHECK(span.numel == 0 || span.data != nullptr, operation, "('", tag, "'): ", name, " is null but has ", span.numel,
           " elements");
}

// Checks that `pieces` consists of `world_size` slices that each have the size and the dtype of `piece`.
void check_pieces(const ConstSpan& pieces, const ConstSpan& piece, const char* pieces_name, const char* piece_name,
                  int world_size, std::string_view operation, std::string_view tag) {
  check_span(pieces, pieces_name, operation, tag);
  check_span(piece, piece_name, operation, tag);
  ZS_CHECK(pieces.dtype == piece.dtype, operation, "('", tag, "'): ", pieces_name, " is ", name_of(pieces.dtype), ", ",
           piece_name, " is ", name_of(piece.dtype));
  ZS_CHECK(pieces.numel == piece.numel * world_size, operation, "('", tag, "'): ", pieces_name, " has ", pieces.numel,
           " elements, expected world_size ", world_size, " x ", piece_name, "'s ", piece.numel);
}

void check_divisible(const ConstSpan& span, const char* name, int world_size, std::string_view operation,
                     std::string_view tag) {
  ZS_CHECK(span.numel % world_size == 0, operation, "('", tag, "'): ", name, " has ", span.numel,
           " elements, which world_size ", world_size, " does not divide");
}

}  // namespace

void check_all_gather(const Span& full, const ConstSpan& shard, int world_size, std::string_view tag) {
  check_pieces(full, shard, "full", "shard", world_size, "all_gather", tag);
}

void check_reduce_scatter(const Span& out, const ConstSpan& full, int world_size, std::string_view tag) {
  check_pieces(full, out, "full", "out", world_size, "reduce_scatter", tag);
  ZS_CHECK(is_floating_point(out.dtype) || out.dtype == DType::kOther8, "reduce_scatter('", tag, "'): cannot sum ",
           name_of(out.dtype));
}

void check_all_to_all(const Span& out, const ConstSpan& in, int world_size, std::string_view tag) {
  check_span(out, "out", "all_to_all", tag);
  check_span(in, "in", "all_to_all", tag);
  ZS_CHECK(out.numel == in.numel && out.dtype == in.dtype, "all_to_all('", tag, "'): out has ", out.numel, " elements ",
           name_of(out.dtype), ", in has ", in.numel, " elements ", name_of(in.dtype));
  check_divisible(in, "in", world_size, "all_to_all", tag);
}

int64_t sent_before(std::span<const int64_t> counts, int world_size, int from, int to) {
  int64_t sum = 0;
  for (int rank = 0; rank < to; ++rank) sum += counts[size_t(from * world_size + rank)];
  return sum;
}

int64_t received_before(std::span<const int64_t> counts, int world_size, int from, int to) {
  int64_t sum = 0;
  for (int rank = 0; rank < from; ++rank) sum += counts[size_t(rank * world_size + to)];
  return sum;
}

void check_all_to_all_v(const Span& out, const ConstSpan& in, std::span<const int64_t> counts, int rank, int world_size,
                        std::string_view tag) {
  check_span(out, "out", "all_to_all_v", tag);
  check_span(in, "in", "all_to_all_v", tag);
  ZS_CHECK(out.dtype == in.dtype, "all_to_all_v('", tag, "'): out is ", name_of(out.dtype), ", in is ",
           name_of(in.dtype));
  ZS_CHECK(std::ssize(counts) == int64_t(world_size) * world_size, "all_to_all_v('", tag, "'): counts has ",
           counts.size(), " entries, expected the square of world_size ", world_size);
  for (const int64_t count : counts) ZS_CHECK(count >= 0, "all_to_all_v('", tag, "'): counts has the entry ", count);
  const int64_t sent = sent_before(counts, world_size, rank, world_size);
  const int64_t received = received_before(counts, world_size, world_size, rank);
  ZS_CHECK(in.numel == sent, "all_to_all_v('", tag, "'): in has ", in.numel, " elements, by the counts rank ", rank,
           " sends ", sent);
  ZS_CHECK(out.numel == received, "all_to_all_v('", tag, "'): out has ", out.numel, " elements, by the counts rank ",
           rank, " receives ", received);
}

Op all_to_all_v_op(std::span<const int64_t> counts, DType dtype, std::string_view tag) {
  int64_t sum = 0;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const int64_t count : counts) {
    sum += count;
    hash = (hash ^ uint64_t(count)) * 0x100000001b3;
  }
  return {OpKind::kAllToAllV, sum, dtype, tag, int32_t(uint32_t(hash ^ (hash >> 32)))};
}

void check_all_reduce(const Span& data, std::string_view tag) {
  check_span(data, "data", "all_reduce", tag);
  ZS_CHECK(data.dtype == DType::kFloat32 || data.dtype == DType::kFloat64 || data.dtype == DType::kOther8,
           "all_reduce('", tag, "'): data is ", name_of(data.dtype), ", expected fp32, fp64 or 64-bit integer");
}

void check_broadcast(const Span& data, int root, int world_size, std::string_view tag) {
  check_span(data, "data", "broadcast", tag);
  ZS_CHECK(root >= 0 && root < world_size, "broadcast('", tag, "'): root is ", root, ", expected 0 to ",
           world_size - 1);
}

void check_exchange(const ConstSpan& full, const Span& scratch, bool needs_scratch, int world_size,
                    std::string_view tag) {
  check_span(full, "full", "exchange", tag);
  check_divisible(full, "full", world_size, "exchange", tag);
  if (!needs_scratch) return;
  check_span(scratch, "scratch", "exchange", tag);
  ZS_CHECK(scratch.numel == full.numel && scratch.dtype == full.dtype, "exchange('", tag, "'): scratch has ",
           scratch.numel, " elements ", name_of(scratch.dtype), ", full has ", full.numel, " elements ",
           name_of(full.dtype));
}

void check_allocate(int64_t bytes, std::string_view tag) {
  ZS_CHECK(bytes >= 0, "allocate('", tag, "'): bytes is ", bytes);
}

}  // namespace zeroshard
