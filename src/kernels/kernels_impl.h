#pragma once
#include <type_traits>

#include "kernels/half.h"
#include "kernels/table.h"

// Every kernel once, for any vector type (struct Scalar states what one must provide). Included by each
// kernels_<isa>.cpp. Arithmetic is written as add, mul, fma, ...: nothing is left to the compiler's contraction.
namespace zeroshard::kernels {
namespace {

inline const void* at(const void* base, int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}
inline void* at(void* base, int64_t bytes) {
  return static_cast<char*>(base) + bytes;
}

// A whole vector at element `index`.
template <class V>
struct Body {
  int64_t index;
  // Asks for the cache line that the loop will need a little later. Several streams at once outrun the hardware's own
  // prefetcher: 1.2 against 1.45 ns per element of an AdamW step, whatever the distance between 0.25 and 4 KiB.
  template <typename T>
  void prefetch(const void* base) const {
    constexpr int64_t kAheadBytes = 1024;
    if constexpr (V::kWidth > 1) __builtin_prefetch(at(base, index * static_cast<int64_t>(sizeof(T)) + kAheadBytes));
  }
  template <typename T>
  typename V::F load(const void* base) const {
    return V::template load<T>(at(base, index * static_cast<int64_t>(sizeof(T))));
  }
  template <typename T>
  void store(void* base, typename V::F value) const {
    V::template store<T>(at(base, index * static_cast<int64_t>(sizeof(T))), value);
  }
  // For elements that were not read and will not be read soon.
  template <typename T>
  void store_last(void* base, typename V::F value) const {
    store<T>(base, value);
  }
};

// A whole vector whose store_last goes past the caches, which saves reading the line first. Needs an aligned address.
template <class V>
struct StreamingBody : Body<V> {
  template <typename T>
  void store_last(void* base, typename V::F value) const {
    V::template stream<T>(at(base, this->index * static_cast<int64_t>(sizeof(T))), value);
  }
};

// The last, incomplete vector.
template <class V>
struct Tail {
  int64_t index;
  int lanes;
  template <typename T>
  void prefetch(const void* /*base*/) const {}
  template <typename T>
  typename V::F load(const void* base) const {
    return V::template load<T>(at(base, index * static_cast<int64_t>(sizeof(T))), lanes);
  }
  template <typename T>
  void store(void* base, typename V::F value) const {
    V::template store<T>(at(base, index * static_cast<int64_t>(sizeof(T))), value, lanes);
  }
  template <typename T>
  void store_last(void* base, typename V::F value) const {
    store<T>(base, value);
  }
};

// Calls step(Body) for every whole vector of the range and step(Tail) for what is left.
template <class V, class Step>
inline void for_each_vector(int64_t numel, const Step& step) {
  int64_t i = 0;
  for (; i + V::kWidth <= numel; i += V::kWidth) step(Body<V>{i});
  if (i < numel) step(Tail<V>{i, static_cast<int>(numel - i)});
}

// Like for_each_vector; store_last to `out`, an array of T, streams when the range is larger than a core's caches.
template <class V, typename T, class Step>
inline void for_each_vector_streaming(int64_t numel, const void* out, const Step& step) {
  constexpr int64_t kLargeNumel = 1 << 16;  // with fp32 weights, gradients and moments: 1 MiB
  if constexpr (V::kStreams) {
    constexpr uintptr_t kVectorBytes = sizeof(T) * V::kWidth;
    if (numel >= kLargeNumel && reinterpret_cast<uintptr_t>(out) % kVectorBytes == 0) {
      const int64_t whole = numel - numel % V::kWidth;
      for (int64_t i = 0; i < whole; i += V::kWidth) step(StreamingBody<V>{{i}});
      if (whole < numel) step(Tail<V>{whole, static_cast<int>(numel - whole)});
      V::end_streams();
      return;
    }
  }
  for_each_vector<V>(numel, step);
}

template <class V, typename Src, typename Dst>
void pack_kernel(const void* src, void* dst, float scale, int64_t numel) {
  const auto factor = V::set(scale);
  for_each_vector<V>(
      numel, [=](auto where) { where.template store<Dst>(dst, V::mul(where.template load<Src>(src), factor)); });
}

template <class V, typename Src, typename Dst>
void pack_add_kernel(const void* src, void* dst, float scale, int64_t numel) {
  const auto factor = V::set(scale);
  for_each_vector<V>(numel, [=](auto where) {
    const auto scaled = V::mul(where.template load<Src>(src), factor);
    where.template store<Dst>(dst, V::add(where.template load<Dst>(dst), scaled));
  });
}

// kCount pieces, or `count` of them when kCount is 0.
template <class V, typename Src, typename Dst, int kCount>
void sum_pieces(const void* const* pieces, int count, float scale, void* out, bool accumulate, int64_t numel) {
  const auto factor = V::set(scale);
  const void* fixed[kCount == 0 ? 1 : kCount];
  for (int p = 0; p < kCount; ++p) fixed[p] = pieces[p];
  for_each_vector<V>(numel, [=](auto where) {
    auto sum = where.template load<Src>(kCount == 0 ? pieces[0] : fixed[0]);
    if constexpr (kCount == 0) {
      for (int p = 1; p < count; ++p) sum = V::add(sum, where.template load<Src>(pieces[p]));
    } else {
#pragma GCC unroll 4
      for (int p = 1; p < kCount; ++p) sum = V::add(sum, where.template load<Src>(fixed[p]));
    }
    sum = V::mul(sum, factor);
    if (accumulate) sum = V::add(where.template load<Dst>(out), sum);
    where.template store<Dst>(out, sum);
  });
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
    default:
      return sum_pieces<V, Src, Dst, 0>(pieces, count, scale, out, accumulate, numel);
  }
}

// The lanes added as a binary tree. Overwrites them.
template <typename T, int kLanes>
T tree_sum(T (&lanes)[kLanes]) {
  static_assert(kLanes > 0 && (kLanes & (kLanes - 1)) == 0, "a power of two");
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// Adds term to sum, and what this addition rounds away to rest (Knuth's TwoSum). Of a double, or a vector of them.
template <typename D>
void add_twofold(D term, D& sum, D& rest) {
  const D total = sum + term, gained = total - sum;
  rest = rest + ((sum - (total - gained)) + (term - gained));
  sum = total;
}

// Element i is added to lane i % kSquareLanes, and the lanes as a binary tree.
constexpr int kSquareLanes = 16;

template <class V, typename T>
TwofoldSum sum_of_squares_kernel(const void* data, int64_t numel) {
  constexpr int kVectors = kSquareLanes / V::kWidth, kNumSums = kVectors * V::kParts;
  typename V::D sums[kNumSums], rests[kNumSums];
#pragma GCC unroll 64
  for (int i = 0; i < kNumSums; ++i) sums[i] = rests[i] = V::zero();
  const auto add = [&](const void* elements, int64_t i) {
#pragma GCC unroll 64
    for (int v = 0; v < kVectors; ++v) {
      typename V::D parts[V::kParts];
      V::widen(Body<V>{i + v * V::kWidth}.template load<T>(elements), parts);
#pragma GCC unroll 64
      for (int part = 0; part < V::kParts; ++part) {
        const int at = v * V::kParts + part;
        add_twofold(parts[part] * parts[part], sums[at], rests[at]);  // the square is exact
      }
    }
  };
  int64_t i = 0;
  for (; i + kSquareLanes <= numel; i += kSquareLanes) {
#pragma GCC unroll 64
    for (int v = 0; v < kVectors; ++v) Body<V>{i + v * V::kWidth}.template prefetch<T>(data);
    add(data, i);
  }
  if (i < numel) {  // zero-filled: adding +0 changes no lane
    T padded[kSquareLanes] = {};
    std::memcpy(padded, at(data, i * static_cast<int64_t>(sizeof(T))), sizeof(T) * static_cast<size_t>(numel - i));
    add(padded, 0);
  }
  constexpr int kLanesPerPart = V::kWidth / V::kParts;
  double lanes[kSquareLanes], rest_lanes[kSquareLanes];
  for (int part = 0; part < kNumSums; ++part) {
    V::store_doubles(lanes + part * kLanesPerPart, sums[part]);
    V::store_doubles(rest_lanes + part * kLanesPerPart, rests[part]);
  }
  for (int half = kSquareLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      rest_lanes[lane] += rest_lanes[lane + half];
      add_twofold(lanes[lane + half], lanes[lane], rest_lanes[lane]);
    }
  }
  return {lanes[0], rest_lanes[0]};
}

}  // namespace
}  // namespace zeroshard::kernels
