#include "device/math.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/align.h"
#include "device/dtype.h"
#include "device/flat_buffer.h"
#include "kernels/kernels.h"
#include "layout/shard_layout.h"

#ifndef INTRA_OP_PARALLEL
#error "LibTorch's parallel loops need OpenMP here, or they run on one thread: compile with -fopenmp"
#endif

namespace zeroshard::math {
namespace {

constexpr int64_t kGrain = 1 << 16;    // elements below which a second thread does not pay
constexpr int64_t kAtenBlocks = 4096;  // squared at a time on other devices than the CPU: bounds their memory
constexpr int64_t kCached = 1 << 15;   // elements summed, then squared, before the next ones: they stay in the L2 cache

int64_t num_pieces(int64_t numel) {
  return ceil_div(numel, kCached);
}

char* at_offset(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * element_size(dtype);
}
const char* at_offset(const void* data, int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * element_size(dtype);
}

// body(begin, end) for pieces of kCached elements, on all threads.
template <typename Body>
void for_cached_pieces(int64_t numel, const Body& body) {
  at::parallel_for(0, num_pieces(numel), kGrain / kCached, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) body(piece * kCached, std::min(numel, (piece + 1) * kCached));
  });
}

void add(const std::vector<kernels::TwofoldSum>& pieces, ExactSum& sum) {
  for (const kernels::TwofoldSum& piece : pieces) {
    sum.add(piece.sum);
    sum.add(piece.rest);
  }
}

}  // namespace

void aten::pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add) {
  const at::Tensor scaled = scale == 1 ? in.reshape({-1}) : in.reshape({-1}).to(at::kFloat).mul(scale);
  add ? out.add_(scaled) : out.copy_(scaled);
}

void aten::sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                        bool accumulate) {
  at::Tensor sum = at::zeros_like(out, at::kFloat);
  for (const void* piece : pieces) sum.add_(view_memory(const_cast<void*>(piece), out.numel(), type, out.device()));
  sum.mul_(scale);
  if (accumulate) sum = out.to(at::kFloat).add_(sum);
  out.copy_(sum);
}

void aten::add_sum_of_squares(const at::Tensor& flat, ExactSum& sum) {
  const int64_t whole = flat.numel() / kBlockNumel;
  const at::Tensor partial = at::zeros({ceil_div(flat.numel(), kBlockNumel)}, flat.options().dtype(at::kDouble));
  const auto square = [&](int64_t first, int64_t last, int64_t end) {
    const at::Tensor part = flat.slice(0, first * kBlockNumel, end).view({last - first, -1});
    partial.slice(0, first, last).copy_(part.to(at::kDouble).square().sum(1));
  };
  for (int64_t at = 0; at < whole; at += kAtenBlocks) {
    const int64_t last = std::min(whole, at + kAtenBlocks);
    square(at, last, last * kBlockNumel);
  }
  if (whole < partial.numel()) square(whole, whole + 1, flat.numel());
  const at::Tensor host = partial.cpu();
  for (const double value : std::span(host.const_data_ptr<double>(), size_t(host.numel()))) sum.add(value);
}

void pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add) {
  if (!out.is_cpu()) return aten::pack(in, out, scale, add);
  const at::Tensor dense = in.contiguous();
  const DType from = to_dtype(dense.scalar_type()), to = to_dtype(out.scalar_type());
  const void* const src = dense.const_data_ptr();
  void* const dst = out.data_ptr();
  at::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    auto* const kernel = add ? kernels::pack_add : kernels::pack;
    kernel(at_offset(src, begin, from), from, at_offset(dst, begin, to), to, scale, end - begin);
  });
}

void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares) {
  if (!out.is_cpu()) {
    aten::sum_in_order(pieces, type, scale, out, accumulate);
    if (squares) aten::add_sum_of_squares(out, *squares);
    return;
  }
  const DType from = to_dtype(type), to = to_dtype(out.scalar_type());
  void* const dst = out.data_ptr();
  const bool in_place = pieces.size() == 1 && pieces[0] == dst && from == to && scale == 1 && !accumulate;
  std::vector<kernels::TwofoldSum> sums(squares ? size_t(num_pieces(out.numel())) : 0);
  for_cached_pieces(out.numel(), [&](int64_t begin, int64_t end) {
    std::vector<const void*> parts(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) parts[i] = at_offset(pieces[i], begin, from);
    void* const to_here = at_offset(dst, begin, to);
    if (!in_place) kernels::sum_in_order(parts, from, scale, to_here, to, accumulate, end - begin);
    if (squares) sums[size_t(begin / kCached)] = kernels::sum_of_squares(to_here, to, end - begin);
  });
  if (squares) add(sums, *squares);
}

void add_sum_of_squares(const at::Tensor& flat, ExactSum& sum) {
  if (!flat.is_cpu()) return aten::add_sum_of_squares(flat, sum);
  const DType dtype = to_dtype(flat.scalar_type());
  std::vector<kernels::TwofoldSum> sums(size_t(num_pieces(flat.numel())));
  for_cached_pieces(flat.numel(), [&](int64_t begin, int64_t end) {
    sums[size_t(begin / kCached)] =
        kernels::sum_of_squares(at_offset(flat.const_data_ptr(), begin, dtype), dtype, end - begin);
  });
  add(sums, sum);
}

}  // namespace zeroshard::math
