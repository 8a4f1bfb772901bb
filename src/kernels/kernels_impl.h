#pragma once
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/half.h"
#include "kernels/table.h"

// Implements the loops over vectors, packing and sums once, for any vector type; struct Scalar states what a vector
// type must provide. Each kernels_<isa>.cpp includes this file through optim_impl.h. Arithmetic is written as calls of
// add, mul, fma, ..., so that the compiler cannot fuse operations in some builds and not in others.
namespace zeroshard::kernels {
namespace {

ZS_KERNEL inline const void* at(const void* base, int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}
ZS_KERNEL inline void* at(void* base, int64_t bytes) {
  return static_cast<char*>(base) + bytes;
}

// A whole vector, at element `index` of each array.
template <class V>
struct Body {
  int64_t index;
  // Prefetches the cache line that the loop needs a little later, because the hardware's prefetcher cannot keep up with
  // several streams. With prefetches from 0.25 to 4 KiB ahead, an AdamW step takes 1.2 instead of 1.45 ns per element.
  template <typename T>
  ZS_KERNEL void prefetch(const void* base) const {
    constexpr int64_t kAheadBytes = 1024;
    if constexpr (V::kWidth > 1 && !V::kOnDevice)
      __builtin_prefetch(at(base, index * static_cast<int64_t>(sizeof(T)) + kAheadBytes));
  }
  template <typename T>
  ZS_KERNEL typename V::F load(const void* base) const {
    return V::template load<T>(at(base, index * static_cast<int64_t>(sizeof(T))));
  }
  template <typename T>
  ZS_KERNEL void store(void* base, typename V::F value) const {
    V::template store<T>(at(base, index * static_cast<int64_t>(sizeof(T))), value);
  }
  // Stores `value`, rounded stochastically to bf16 with 16 random bits per lane.
  ZS_KERNEL void store_at_random(void* base, typename V::F value, typename V::I random) const {
    V::store_at_random(at(base, index * static_cast<int64_t>(sizeof(Bf16))), value, random);
  }
  // Stores elements that were not read and will not be read soon.
  template <typename T>
  ZS_KERNEL void store_last(void* base, typename V::F value) const {
    store<T>(base, value);
  }
};

// A whole vector whose store_last bypasses the caches, so that the cache line is not read before it is written. The
// address of the store must be aligned to the vector.
template <class V>
struct StreamingBody : Body<V> {
  template <typename T>
  void store_last(void* base, typename V::F value) const {
    V::template stream<T>(at(base, this->index * static_cast<int64_t>(sizeof(T))), value);
  }
};

// The last, incomplete vector, which has `lanes` elements from `index` on.
template <class V>
struct Tail {
  int64_t index;
  int lanes;
  template <typename T>
  ZS_KERNEL void prefetch(const void* /*base*/) const {}
  template <typename T>
  ZS_KERNEL typename V::F load(const void* base) const {
    return V::template load<T>(at(base, index * static_cast<int64_t>(sizeof(T))), lanes);
  }
  template <typename T>
  ZS_KERNEL void store(void* base, typename V::F value) const {
    V::template store<T>(at(base, index * static_cast<int64_t>(sizeof(T))), value, lanes);
  }
  ZS_KERNEL void store_at_random(void* base, typename V::F value, typename V::I random) const {
    V::store_at_random(at(base, index * static_cast<int64_t>(sizeof(Bf16))), value, random, lanes);
  }
  template <typename T>
  ZS_KERNEL void store_last(void* base, typename V::F value) const {
    store<T>(base, value);
  }
};

// Calls step(Body) for every whole vector of the range, and step(Tail) for the remaining elements. A vector type for a
// device leaves the loop to the device.
template <class V, class Step>
inline void for_each_vector(int64_t numel, const Step& step) {
  if constexpr (V::kOnDevice) {
    V::for_each(numel, step);
  } else {
    int64_t i = 0;
    for (; i + V::kWidth <= numel; i += V::kWidth) step(Body<V>{i});
    if (i < numel) step(Tail<V>{i, static_cast<int>(numel - i)});
  }
}

constexpr int64_t kLargeNumel = 1 << 16;  // elements whose weights, gradients and two moments take 1 MiB in fp32

// Returns whether the address is aligned to a vector of T.
template <class V, typename T>
inline bool is_aligned_to(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % (sizeof(T) * V::kWidth) == 0;
}

// Works like for_each_vector. But store_last to `out` (an array of T) bypasses the caches if V can do that (kStreams),
// the range has kLargeNumel elements or more, and `out` is aligned to a vector.
template <class V, typename T, class Step>
inline void for_each_vector_streaming(int64_t numel, const void* out, const Step& step) {
  if constexpr (V::kStreams) {
    if (numel >= kLargeNumel && is_aligned_to<V, T>(out)) {
      const int64_t whole = numel - numel % V::kWidth;
      for (int64_t i = 0; i < whole; i += V::kWidth) step(StreamingBody<V>{{i}});
      if (whole < numel) step(Tail<V>{whole, static_cast<int>(numel - whole)});
      V::end_streams();
      return;
    }
  }
  for_each_vector<V>(numel, step);
}

// Each struct below is the work of a kernel on one vector. It is a type with a name and not a lambda, so that it can be
// passed to a device; see for_each_vector.
template <class V, typename Src, typename Dst>
struct Pack {
  const void* src;
  void* dst;
  typename V::F scale;

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    where.template store<Dst>(dst, V::mul(where.template load<Src>(src), scale));
  }
};

template <class V, typename Src, typename Dst>
void pack_kernel(const void* src, void* dst, float scale, int64_t numel) {
  for_each_vector<V>(numel, Pack<V, Src, Dst>{src, dst, V::set(scale)});
}

template <class V, typename Src, typename Dst>
struct PackAdd {
  const void* src;
  void* dst;
  typename V::F scale;

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    const auto scaled = V::mul(where.template load<Src>(src), scale);
    where.template store<Dst>(dst, V::add(where.template load<Dst>(dst), scaled));
  }
};

template <class V, typename Src, typename Dst>
void pack_add_kernel(const void* src, void* dst, float scale, int64_t numel) {
  for_each_vector<V>(numel, PackAdd<V, Src, Dst>{src, dst, V::set(scale)});
}

// The addresses of the pieces of a sum. There are kCount pieces, or `count` pieces if kCount is 0.
template <int kCount>
struct Pieces {
  static constexpr int kFixed = kCount;
  const void* all[kCount];
  ZS_KERNEL const void* operator[](int p) const { return all[p]; }
};
template <>
struct Pieces<0> {
  static constexpr int kFixed = 0;
  const void* const* all;
  int count;
  ZS_KERNEL const void* operator[](int p) const { return all[p]; }
};

// Note [The tree of a sum]
// The pieces are added as a binary tree, for example (p0 + p1) + p2, or ((p0 + p1) + (p2 + p3)) + p4. The number of
// pieces in the left subtree is the largest power of two that leaves at least one piece for the right subtree. So if
// the pieces are cut, from the first one on, into groups of 2^k neighbours, each group is a subtree. Code that first
// adds each group, and then the sums of the groups, gets the same bits.

// Adds the pieces [first, first + kCount).
template <class V, typename Src, int kCount, class Each, class Where>
ZS_KERNEL inline typename V::F sum_of_fixed(const Each& pieces, Where where, int first) {
  if constexpr (kCount == 1) {
    return where.template load<Src>(pieces[first]);
  } else {
    constexpr int kLeft = kCount > 4 ? 4 : kCount > 2 ? 2 : 1;
    static_assert(kCount <= 8);
    const auto left = sum_of_fixed<V, Src, kLeft>(pieces, where, first);
    return V::add(left, sum_of_fixed<V, Src, kCount - kLeft>(pieces, where, first + kLeft));
  }
}

// Adds the pieces [first, first + count), where 0 < count <= kMost. kMost is a power of two.
template <class V, typename Src, int kMost, class Each, class Where>
ZS_KERNEL inline typename V::F sum_of_few(const Each& pieces, Where where, int first, int count) {
  if constexpr (kMost == 1) {
    return where.template load<Src>(pieces[first]);
  } else {
    constexpr int kLeft = kMost / 2;
    if (count <= kLeft) return sum_of_few<V, Src, kLeft>(pieces, where, first, count);
    const auto left = sum_of_fixed<V, Src, kLeft>(pieces, where, first);
    return V::add(left, sum_of_few<V, Src, kLeft>(pieces, where, first + kLeft, count - kLeft));
  }
}

// Adds any number of pieces, in groups of 8. After `group` groups, sums[l] is the sum of 2^l groups if bit l of `group`
// is 1. If the bit is 0, sums[l] is not used.
template <class V, typename Src, class Each, class Where>
ZS_KERNEL inline typename V::F sum_of_many(const Each& pieces, Where where, int count) {
  constexpr int kAtOnce = 8, kLevels = 28;
  if (count <= kAtOnce) return sum_of_few<V, Src, kAtOnce>(pieces, where, 0, count);
  typename V::F sums[kLevels];
  const int last = (count - 1) / kAtOnce;
  for (int group = 0; group < last; ++group) {
    auto sum = sum_of_fixed<V, Src, kAtOnce>(pieces, where, group * kAtOnce);
    int level = 0;
    for (; ((group >> level) & 1) != 0; ++level) sum = V::add(sums[level], sum);
    sums[level] = sum;
  }
  auto sum = sum_of_few<V, Src, kAtOnce>(pieces, where, last * kAtOnce, count - last * kAtOnce);
  for (int level = 0; last >> level != 0; ++level)
    if (((last >> level) & 1) != 0) sum = V::add(sums[level], sum);
  return sum;
}

template <class V, typename Src, typename Dst, class Each>
struct SumInOrder {
  Each pieces;
  void* out;
  typename V::F scale;
  bool accumulate;

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    typename V::F sum;
    if constexpr (Each::kFixed == 0) {
      sum = sum_of_many<V, Src>(pieces, where, pieces.count);
    } else {
      sum = sum_of_fixed<V, Src, Each::kFixed>(pieces, where, 0);
    }
    sum = V::mul(sum, scale);
    if (accumulate) sum = V::add(where.template load<Dst>(out), sum);
    where.template store<Dst>(out, sum);
  }
};

template <class V, typename Src, typename Dst, int kCount>
void sum_pieces(const void* const* pieces, int count, float scale, void* out, bool accumulate, int64_t numel) {
  Pieces<kCount> all;
  if constexpr (kCount == 0) {
    all = {pieces, count};
  } else {
    for (int p = 0; p < kCount; ++p) all.all[p] = pieces[p];
  }
  for_each_vector<V>(numel, SumInOrder<V, Src, Dst, Pieces<kCount>>{all, out, V::set(scale), accumulate});
}

template <class V, typename Src, typename Dst>
void sum_kernel(const void* const* pieces, int count, float scale, void* out, bool accumulate, int64_t numel) {
  switch (count) {
    case 1:
      return sum_pieces<V, Src, Dst, 1>(pieces, count, scale, out, accumulate, numel);
    case 2:
      return sum_pieces<V, Src, Dst, 2>(pieces, count, scale, out, accumulate, numel);
    case 3:
      return sum_pieces<V, Src, Dst, 3>(pieces, count, scale, out, accumulate, numel);
    case 4:
      return sum_pieces<V, Src, Dst, 4>(pieces, count, scale, out, accumulate, numel);
    case 8:
      return sum_pieces<V, Src, Dst, 8>(pieces, count, scale, out, accumulate, numel);
    default:
      return sum_pieces<V, Src, Dst, 0>(pieces, count, scale, out, accumulate, numel);
  }
}

// Returns the sum of the lanes, added as a binary tree. Overwrites the lanes.
template <typename T, int kLanes>
T tree_sum(T (&lanes)[kLanes]) {
  static_assert(kLanes > 0 && (kLanes & (kLanes - 1)) == 0, "a power of two");
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// Adds term to sum, and adds the rounding error of this addition to rest (Knuth's TwoSum).
inline void add_twofold(double term, double& sum, double& rest) {
  const double total = sum + term, gained = total - sum;
  rest += (sum - (total - gained)) + (term - gained);
  sum = total;
}

// The number of lanes in which squares are summed. Element i is added to lane i % kSquareLanes, and then the lanes are
// added as a binary tree.
constexpr int kSquareLanes = 16;

template <class V, typename T>
float max_abs(const void* data, int64_t numel) {
  auto most = V::set(0);
  for_each_vector<V>(numel, [&](auto where) { most = V::max_abs(most, where.template load<T>(data)); });
  float lanes[V::kWidth];
  V::template store<float>(lanes, most);
  for (int half = V::kWidth / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] = std::max(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

// Returns the largest magnitude among up to 256 elements, sampled from the whole range.
template <class V, typename T>
float sampled_max_abs(const void* data, int64_t numel) {
  constexpr int64_t kStretches = 4, kStretch = 64;
  if (numel <= kStretches * kStretch) return max_abs<V, T>(data, numel);
  float result = 0;
  for (int64_t i = 0; i < kStretches; ++i) {
    const int64_t begin = (numel - kStretch) * i / (kStretches - 1);
    const float most = max_abs<V, T>(at(data, begin * static_cast<int64_t>(sizeof(T))), kStretch);
    result = most > result ? most : result;
  }
  return result;
}

// Returns the value at which a sum of squares starts. The value is 1.5 P, where P is a power of two. The sum stays
// below 2 P as long as the sum of the added squares is less than 2^bits times the square of `max_abs`.
inline double grid_base(float max_abs, uint64_t bits) {
  constexpr uint64_t kExponent = uint64_t{0x7ff} << 52, kHalf = uint64_t{1} << 51;
  const uint64_t square = std::bit_cast<uint64_t>(static_cast<double>(max_abs) * max_abs);
  return std::bit_cast<double>(((square & kExponent) + ((bits + 2) << 52)) | kHalf);
}

// Adds squares to kSquareLanes sums that start at `base`. Writes the sums without `base` to `lanes`, and the sums of
// the rounding errors to `rests`. As long as a sum keeps the exponent of `base`, it is rounded to multiples of one
// power of two, and its rounding errors are exact. Returns false if a sum has got another exponent. If a square is not
// finite, its sum is not finite either, and the function returns false.
template <class V, typename T>
bool add_squares_on_grid(const void* data, int64_t numel, double base, double (&lanes)[kSquareLanes],
                         double (&rests)[kSquareLanes]) {
  constexpr int kVectors = kSquareLanes / V::kWidth, kNumParts = kVectors * V::kParts;
  constexpr int kLanesPerPart = V::kWidth / V::kParts;
  typename V::D sum[kNumParts], rest[kNumParts];
#pragma GCC unroll 64
  for (int i = 0; i < kNumParts; ++i) {
    sum[i] = V::zero() + base;
    rest[i] = V::zero();
  }
  const auto add = [&](const void* elements, int64_t i) {
#pragma GCC unroll 64
    for (int v = 0; v < kVectors; ++v) {
      typename V::D parts[V::kParts];
      V::widen(Body<V>{i + v * V::kWidth}.template load<T>(elements), parts);
#pragma GCC unroll 64
      for (int part = 0; part < V::kParts; ++part) {
        const int at = v * V::kParts + part;
        const typename V::D before = sum[at];
        sum[at] = V::square_plus(parts[part], before);
        rest[at] = rest[at] + V::square_plus(parts[part], before - sum[at]);
      }
    }
  };
  int64_t i = 0;
  for (; i + kSquareLanes <= numel; i += kSquareLanes) {
#pragma GCC unroll 64
    for (int v = 0; v < kVectors; ++v) Body<V>{i + v * V::kWidth}.template prefetch<T>(data);
    add(data, i);
  }
  if (i < numel) {  // the missing elements are 0, because adding +0 changes no lane
    T padded[kSquareLanes] = {};
    std::memcpy(padded, at(data, i * static_cast<int64_t>(sizeof(T))), sizeof(T) * static_cast<size_t>(numel - i));
    add(padded, 0);
  }
  for (int part = 0; part < kNumParts; ++part) {
    V::store_doubles(lanes + part * kLanesPerPart, sum[part] - base);
    V::store_doubles(rests + part * kLanesPerPart, rest[part]);
  }
  bool inside = true;
  for (const double lane : lanes) inside = inside && lane < base / 3;
  return inside;
}

template <class V, typename T>
TwofoldSum sum_of_squares_kernel(const void* data, int64_t numel) {
  double lanes[kSquareLanes], rests[kSquareLanes];
  // A lane adds fewer than 2^bits squares, so its sum is below 2^bits times the square of the largest magnitude.
  const auto bits = static_cast<uint64_t>(std::bit_width(static_cast<uint64_t>(numel) / kSquareLanes + 1));
  constexpr uint64_t kLargerThanSampled = 6;  // elements may be 8 times the sampled maximum: 2^6 = 8^2
  const double likely = grid_base(sampled_max_abs<V, T>(data, numel), bits + kLargerThanSampled);
  if (!add_squares_on_grid<V, T>(data, numel, likely, lanes, rests))
    add_squares_on_grid<V, T>(data, numel, grid_base(max_abs<V, T>(data, numel), bits), lanes, rests);
  for (int half = kSquareLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      rests[lane] += rests[lane + half];
      add_twofold(lanes[lane + half], lanes[lane], rests[lane]);
    }
  }
  return {lanes[0], rests[0]};
}

}  // namespace
}  // namespace zeroshard::kernels
