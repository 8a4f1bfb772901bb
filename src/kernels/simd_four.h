#pragma once
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "kernels/half.h"
#include "kernels/kernels_impl.h"

namespace zeroshard::kernels {
namespace {

// A vector type of four neighbouring elements, for one thread of a device. It reads and writes 8 or 16 bytes at a time
// if the address allows it. Addresses must be aligned to an element. The type has only the members that packing, sums
// of pieces and the optimizers need.
struct FourLanes {
  static constexpr int kWidth = 4;
  static constexpr bool kOnDevice = false, kStreams = false;
  struct F {
    float lanes[kWidth];
  };
  struct I {};  // there are no moments in bf16

  ZS_KERNEL static F set(float value) { return {{value, value, value, value}}; }
  template <typename T>
  ZS_KERNEL static F load(const void* from) {
    if (!is_aligned<T>(from)) return load<T>(from, kWidth);
    Packed<T> packed;
    memcpy(&packed, whole<T>(from), sizeof packed);
    F result;
    for (int i = 0; i < kWidth; ++i) result.lanes[i] = to_float(packed.values[i]);
    return result;
  }
  template <typename T>
  ZS_KERNEL static void store(void* to, F value) {
    if (!is_aligned<T>(to)) return store<T>(to, value, kWidth);
    Packed<T> packed;
    for (int i = 0; i < kWidth; ++i) packed.values[i] = from_float<T>(value.lanes[i]);
    memcpy(whole<T>(to), &packed, sizeof packed);
  }
  // The following load and store handle the first `lanes` elements. The other lanes are loaded as 0, and are not
  // stored.
  template <typename T>
  ZS_KERNEL static F load(const void* from, int lanes) {
    F result = set(0);
    for (int i = 0; i < kWidth; ++i)
      if (i < lanes) result.lanes[i] = to_float(static_cast<const T*>(from)[i]);
    return result;
  }
  template <typename T>
  ZS_KERNEL static void store(void* to, F value, int lanes) {
    for (int i = 0; i < kWidth; ++i)
      if (i < lanes) static_cast<T*>(to)[i] = from_float<T>(value.lanes[i]);
  }

  ZS_KERNEL static F add(F a, F b) {
    for (int i = 0; i < kWidth; ++i) a.lanes[i] = a.lanes[i] + b.lanes[i];
    return a;
  }
  ZS_KERNEL static F sub(F a, F b) {
    for (int i = 0; i < kWidth; ++i) a.lanes[i] = a.lanes[i] - b.lanes[i];
    return a;
  }
  ZS_KERNEL static F mul(F a, F b) {
    for (int i = 0; i < kWidth; ++i) a.lanes[i] = a.lanes[i] * b.lanes[i];
    return a;
  }
  ZS_KERNEL static F div(F a, F b) {
    for (int i = 0; i < kWidth; ++i) a.lanes[i] = a.lanes[i] / b.lanes[i];
    return a;
  }
  ZS_KERNEL static F fma(F a, F b, F c) {  // rounds once
    for (int i = 0; i < kWidth; ++i) a.lanes[i] = fmaf(a.lanes[i], b.lanes[i], c.lanes[i]);
    return a;
  }
  ZS_KERNEL static F sqrt(F a) {
    for (int i = 0; i < kWidth; ++i) a.lanes[i] = sqrtf(a.lanes[i]);
    return a;
  }
  // See Scalar::by_sign().
  ZS_KERNEL static F by_sign(F a, F selector) {
    for (int i = 0; i < kWidth; ++i) {
      const float sign = selector.lanes[i];
      a.lanes[i] = sign > 0 ? a.lanes[i] : sign < 0 ? 0.0f - a.lanes[i] : 0.0f;
    }
    return a;
  }
  ZS_KERNEL static F finite_or(F a, F b) {
    constexpr uint32_t kExponent = 0x7f800000u;
    for (int i = 0; i < kWidth; ++i)
      if ((bits_of(a.lanes[i]) & kExponent) == kExponent) a.lanes[i] = b.lanes[i];
    return a;
  }
  // Replaces each lane of `weights` that does not round to the parameter by the parameter. Returns whether there was
  // any such lane.
  template <typename T>
  ZS_KERNEL static bool take_written(F& weights, F param) {
    bool any = false;
    for (int i = 0; i < kWidth; ++i) {
      if (bits_of(to_float(from_float<T>(weights.lanes[i]))) == bits_of(param.lanes[i])) continue;
      weights.lanes[i] = param.lanes[i];
      any = true;
    }
    return any;
  }

 private:
  template <typename T>
  struct alignas(kWidth * sizeof(T)) Packed {
    T values[kWidth];
  };
  template <typename T>
  ZS_KERNEL static bool is_aligned(const void* address) {
    return reinterpret_cast<uintptr_t>(address) % sizeof(Packed<T>) == 0;
  }
  // Tells the device's compiler that the address is aligned, so that the compiler uses one access. The host's compiler
  // is not told, because GCC 12 merges the accesses of the aligned and the unaligned branch, and then assumes that the
  // merged address is aligned.
  template <typename T, typename Address>
  ZS_KERNEL static Address* whole(Address* address) {
#ifdef __CUDA_ARCH__
    return static_cast<Address*>(__builtin_assume_aligned(address, sizeof(Packed<T>)));
#else
    return address;
#endif
  }
};

// The addresses of pieces that lie at equal distances in memory, as after an all-to-all. Three numbers describe any
// number of such pieces, so they can be parameters of a launch.
struct EvenPieces {
  static constexpr int kFixed = 0;
  const char* first;
  int64_t distance;
  int count;
  ZS_KERNEL const void* operator[](int p) const { return first + p * distance; }
};

inline EvenPieces even(const void* const* pieces, int count) {
  const auto address = [pieces](int p) { return static_cast<const char*>(pieces[p]); };
  const EvenPieces all{address(0), address(1) - address(0), count};
  for (int p = 0; p < count; ++p)
    ZS_ASSERT(address(p) == all[p], "piece ", p, " of ", count, " does not lie as far from the one before as others");
  return all;
}

// Sums up to three pieces at any addresses, or any number of pieces at equal distances.
template <class V, typename Src, typename Dst>
void sum_even_kernel(const void* const* pieces, int count, float scale, void* out, bool accumulate, int64_t numel) {
  switch (count) {
    case 1:
      return sum_pieces<V, Src, Dst, 1>(pieces, count, scale, out, accumulate, numel);
    case 2:
      return sum_pieces<V, Src, Dst, 2>(pieces, count, scale, out, accumulate, numel);
    case 3:
      return sum_pieces<V, Src, Dst, 3>(pieces, count, scale, out, accumulate, numel);
    default:
      break;
  }
  for_each_vector<V>(numel, SumInOrder<V, Src, Dst, EvenPieces>{even(pieces, count), out, V::set(scale), accumulate});
}

#define ZS_TO(entry, kernel, src, Src)          \
  table.entry[src][0] = &kernel<V, Src, float>; \
  table.entry[src][1] = &kernel<V, Src, Bf16>;  \
  table.entry[src][2] = &kernel<V, Src, Fp16>
#define ZS_FROM(entry, kernel)    \
  ZS_TO(entry, kernel, 0, float); \
  ZS_TO(entry, kernel, 1, Bf16);  \
  ZS_TO(entry, kernel, 2, Fp16)
// Makes the entries for fp32 moments.
#define ZS_STEP(entry, kernel, src, Src)                  \
  table.entry[0][src][0] = &kernel<V, Src, float, float>; \
  table.entry[0][src][1] = &kernel<V, Src, Bf16, float>;  \
  table.entry[0][src][2] = &kernel<V, Src, Fp16, float>;  \
  table.entry[0][src][3] = &kernel<V, Src, void, float>
#define ZS_STEPS(entry, kernel)     \
  ZS_STEP(entry, kernel, 0, float); \
  ZS_STEP(entry, kernel, 1, Bf16);  \
  ZS_STEP(entry, kernel, 2, Fp16)

// Makes the table of a device's kernels. The entries that are not set here are null.
template <class V>
KernelTable make_device_table(const char* name) {
  KernelTable table{};
  table.name = name;
  ZS_FROM(pack, pack_kernel);
  ZS_FROM(pack_add, pack_add_kernel);
  ZS_FROM(sum_in_order, sum_even_kernel);
  ZS_STEPS(adam, adam_kernel);
  ZS_STEPS(sgd, sgd_kernel);
  ZS_STEPS(lion, lion_kernel);
  ZS_STEPS(adagrad, adagrad_kernel);
  return table;
}
#undef ZS_TO
#undef ZS_FROM
#undef ZS_STEP
#undef ZS_STEPS

}  // namespace
}  // namespace zeroshard::kernels
