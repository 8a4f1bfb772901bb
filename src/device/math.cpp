#include "device/math.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <functional>

#include "base/align.h"
#include "base/check.h"
#include "device/device_kernels.h"
#include "device/device_squares.h"
#include "device/dtype.h"
#include "device/flat_buffer.h"
#include "device/parallel_for.h"
#include "kernels/kernels.h"

namespace zeroshard::math {
namespace {

constexpr int64_t kGrain = 1 << 16;  // the fewest elements for which a second thread pays
// Number of elements that are summed at a time on devices without kernels. It limits the temporary memory.
constexpr int64_t kAtenPiece = 1 << 23;
// Number of elements that are summed, and then squared, before the next ones are read. So few elements stay in the L2
// cache.
constexpr int64_t kCached = 1 << 15;

int64_t num_pieces(int64_t numel) {
  return ceil_div(numel, kCached);
}

char* at_offset(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * element_size(dtype);
}
const char* at_offset(const void* data, int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * element_size(dtype);
}

// Calls body(begin, end) for pieces of kCached elements. The pieces are spread over the threads.
template <typename Body>
void for_cached_pieces(int64_t numel, const Body& body) {
  parallel_for(0, num_pieces(numel), kGrain / kCached, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) body(piece * kCached, std::min(numel, (piece + 1) * kCached));
  });
}

// Returns the device's own kernels, or null if there are none or they do not support these types.
const kernels::KernelTable* table_for(at::Device device, at::ScalarType one, at::ScalarType other) {
  const auto is_taken = [](at::ScalarType type) {
    return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  };
  const DeviceKernels* const own = device_kernels(device.type());
  return own && is_taken(one) && is_taken(other) ? own->table : nullptr;
}

void add(const std::vector<kernels::TwofoldSum>& pieces, ExactSum& sum) {
  for (const kernels::TwofoldSum& piece : pieces) {
    sum.add(piece.sum);
    sum.add(piece.rest);
  }
}

// Overwrites `sum` with the sum of the pieces, added as a tree; see Note [The tree of a sum] in kernels_impl.h. `piece`
// returns the tensor at a pointer.
void add_tree(std::span<const void* const> pieces, const std::function<at::Tensor(const void*)>& piece,
              const at::Tensor& sum) {
  sum.copy_(piece(pieces[0]));
  // `sum` is the left child of the next node. The right child is the tree of the next `count` pieces.
  for (size_t done = 1; done < pieces.size();) {
    const size_t count = std::min(done, pieces.size() - done);
    if (count == 1) {
      sum.add_(piece(pieces[done]));
    } else {
      const at::Tensor right = at::empty_like(sum);
      add_tree(pieces.subspan(done, count), piece, right);
      sum.add_(right);
    }
    done += count;
  }
}

}  // namespace

void aten::pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add) {
  const at::NoGradGuard no_grad;  // `in` can have a graph, which `out` must not keep alive
  const at::Tensor scaled = scale == 1 ? in.reshape({-1}) : in.reshape({-1}).to(at::kFloat).mul(scale);
  add ? out.add_(scaled) : out.copy_(scaled);
}

// Needs a temporary fp32 buffer of up to kAtenPiece elements for the sum. If `out` is fp32 and `accumulate` is false,
// `out` itself is this buffer. The pieces are added as a tree, in which each open right subtree has such a buffer of
// its own. Up to 2^k pieces need up to k - 1 more of them.
void aten::sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                        bool accumulate) {
  const bool same_type = type == out.scalar_type();
  if (pieces.size() == 1 && pieces[0] == out.const_data_ptr() && same_type && scale == 1 && !accumulate) return;
  const bool grows_in_place = out.scalar_type() == at::kFloat && !accumulate;
  for (int64_t begin = 0; begin < out.numel(); begin += kAtenPiece) {
    const int64_t end = std::min(out.numel(), begin + kAtenPiece);
    const at::Tensor to = out.slice(0, begin, end), sum = grows_in_place ? to : at::empty_like(to, at::kFloat);
    const auto piece = [&](const void* data) {
      return view_memory(const_cast<void*>(data), out.numel(), type, out.device()).slice(0, begin, end);
    };
    add_tree(pieces, piece, sum);
    if (scale != 1) sum.mul_(scale);
    if (accumulate) sum.add_(to);
    if (!grows_in_place) to.copy_(sum);
  }
}

// Takes the whole `out` and not a slice, because making a slice for a small gradient on a device takes the host as long
// as the launch.
void pack(const Packed& packed, const at::Tensor& out, float scale, bool add) {
  const bool on_host = out.is_cpu();
  const int64_t numel = packed.in.numel();
  ZS_ASSERT(packed.begin + numel <= out.numel());
  const auto* const table =
      on_host ? &kernels::active_table() : table_for(out.device(), packed.in.scalar_type(), out.scalar_type());
  if (!table) return aten::pack(packed.in, out.slice(0, packed.begin, packed.begin + numel), scale, add);
  const at::Tensor dense = packed.in.contiguous();
  const DType from = to_dtype(dense.scalar_type()), to = to_dtype(out.scalar_type());
  const auto pack_range = [&, src = dense.const_data_ptr(), dst = at_offset(out.data_ptr(), packed.begin, to)](
                              int64_t begin, int64_t end) {
    const void* const src_here = at_offset(src, begin, from);
    void* const dst_here = at_offset(dst, begin, to);
    add ? kernels::pack_add(*table, src_here, from, dst_here, to, scale, end - begin)
        : kernels::pack(*table, src_here, from, dst_here, to, scale, end - begin);
  };
  if (on_host) return parallel_for(0, numel, kGrain, pack_range);
  const c10::OptionalDeviceGuard guard(out.device());
  pack_range(0, numel);
}

bool packs_together(const at::Tensor& in, const at::Tensor& out) {
  const DeviceKernels* const own = device_kernels(out.device().type());
  return own && own->pack_all && in.device() == out.device() && in.is_contiguous() &&
         table_for(out.device(), in.scalar_type(), out.scalar_type());
}

void pack_all(std::span<const Packed> all, const at::Tensor& out, float scale) {
  if (all.empty()) return;
  const c10::OptionalDeviceGuard guard(out.device());
  const at::ScalarType from = all[0].in.scalar_type();
  const DType to = to_dtype(out.scalar_type());
  std::vector<PackItem> items;
  for (const auto& [in, begin] : all) {
    ZS_ASSERT(packs_together(in, out) && in.scalar_type() == from && begin + in.numel() <= out.numel());
    items.push_back({in.const_data_ptr(), at_offset(out.data_ptr(), begin, to), in.numel()});
  }
  device_kernels(out.device().type())->pack_all(items, to_dtype(from), to, scale);
}

void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares) {
  if (!out.is_cpu()) {
    ZS_ASSERT(!squares, "on ", out.device().str(), ", squares are added on their own");
    const auto* const table = table_for(out.device(), type, out.scalar_type());
    if (!table) return aten::sum_in_order(pieces, type, scale, out, accumulate);
    const bool is_there = pieces.size() == 1 && pieces[0] == out.const_data_ptr() && type == out.scalar_type();
    if (is_there && scale == 1 && !accumulate) return;
    const c10::OptionalDeviceGuard guard(out.device());
    return kernels::sum_in_order(*table, pieces, to_dtype(type), scale, out.data_ptr(), to_dtype(out.scalar_type()),
                                 accumulate, out.numel());
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
  if (!flat.is_cpu()) return sum.add(sum_of_squares({&flat, 1}));
  const DType dtype = to_dtype(flat.scalar_type());
  std::vector<kernels::TwofoldSum> sums(size_t(num_pieces(flat.numel())));
  for_cached_pieces(flat.numel(), [&](int64_t begin, int64_t end) {
    sums[size_t(begin / kCached)] =
        kernels::sum_of_squares(at_offset(flat.const_data_ptr(), begin, dtype), dtype, end - begin);
  });
  add(sums, sum);
}

}  // namespace zeroshard::math
