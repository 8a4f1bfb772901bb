#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/kernels_impl.h"
#include "layout/shard_layout.h"

// Stores moments as 8-bit codes, in blocks with one fp32 scale each. The codes are those of the dynamic map of arXiv
// 2110.02861 (T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization").
//
// Note [The dynamic map]
// The map has 7 decades, and the values 0 and 1. Decade i (0 to 6) has n = 2^i values of each sign, or 2n values if all
// are positive. Their magnitudes are the midpoints of n (or 2n) equal parts of the interval 10^(i-6) * [0.1, 1]. Codes
// number the values in ascending order. Let x = 2 * |code - 127| + 1 for signed codes, or code + 1.5 for unsigned
// codes, and let m in [1, 2) be the mantissa of x. The exponent of x is 0 for the value 0, i + 1 for decade i, and 8
// for the value 1. The magnitude of a value in decade i is 10^(i-6) * (0.9 m - 0.8). So decoding and encoding each need
// only a lookup and one fma. Tables have 8 entries, because a vector of AVX2 has 8 lanes. One entry serves both values
// outside of the decades, 0 and 1.
namespace zeroshard::kernels {
namespace {

struct Code8 {
  uint8_t bits;
};

constexpr int kDecades = 7, kEntries = kDecades + 1;

// Each entry has a line (`slope` and `offset`) that maps x to the value. The index of the entry is the last 3 bits of
// the exponent field of x.
struct DecodeTable {
  alignas(64) float slope[kEntries] = {}, offset[kEntries] = {};
};
struct EncodeTable {
  // `above[k]` is the border between the magnitudes of entry k and those of entry k + 1. For k = 7 the upper entry is
  // entry 0, which serves the values 0 and 1.
  alignas(64) float above[kEntries] = {};
  // Each entry has a line (`slope` and `offset`) and an upper bound (`most`). The line maps a magnitude to a number,
  // which is then limited to `most` and truncated. The result is the distance of the magnitude's code from the code of
  // the value 0.
  float slope[kEntries] = {}, offset[kEntries] = {}, most[kEntries] = {};
};

constexpr double kDecadeEnds[kDecades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};

constexpr DecodeTable make_decode_table(bool is_signed) {
  constexpr uint32_t kBias = 127;  // of the exponent field of a float
  DecodeTable table;
  for (uint32_t i = 0; i < kDecades; ++i) {
    const uint32_t entry = (kBias + i + 1) % kEntries;
    table.slope[entry] = static_cast<float>(0.9 * kDecadeEnds[i]) / static_cast<float>(2u << i);
    table.offset[entry] = static_cast<float>(-0.8 * kDecadeEnds[i]);
  }
  // This entry serves the values 0 and 1. For signed codes, its line maps x = 1 to 0 and x = 257 to 1. For unsigned
  // codes, its line maps x = 1.5 to 0, and x = 256.5 to more than 1, which decoding lowers to 1.
  table.slope[kBias % kEntries] = is_signed ? 0x1p-8f : 1;
  table.offset[kBias % kEntries] = is_signed ? -0x1p-8f : -1.5f;
  return table;
}

// Makes the table for encoding. A magnitude gets the code of the nearest value of the map, so the borders between codes
// are the middles between neighbouring values.
constexpr EncodeTable make_encode_table(bool is_signed) {
  EncodeTable table;
  const double shift = is_signed ? 0 : 1;
  for (int i = 0; i < kDecades; ++i) {
    const double n = static_cast<double>(is_signed ? 1 << i : 2 << i), end = kDecadeEnds[i];
    if (i == 0) table.above[0] = static_cast<float>(end * (0.1 + 0.45 / n) / 2);
    table.above[i + 1] = static_cast<float>(i + 1 < kDecades ? end * (1 + 0.9 / n) : 1 - 0.225 / n);
    table.slope[i + 1] = static_cast<float>(n / (0.9 * end));
    table.offset[i + 1] = static_cast<float>(0.8 * n / 0.9 - shift);
    table.most[i + 1] = static_cast<float>(2 * n - shift - 0.5);
  }
  table.slope[0] = is_signed ? 128 : 255;
  table.offset[0] = 0.5f;
  table.most[0] = table.slope[0] + table.offset[0];
  return table;
}

// Magnitudes below kLeast get the code of the value 0. Magnitudes from kLeast to 2 lie in 8 groups of 3.2 octaves
// (factors of 2) each. Group k contains the border above[k] and no other border, so a magnitude in group k has entry k
// or k + 1. The bits of a float grow by 2^23 per octave, so a product of these bits with kGroupFactor counts groups.
// The last 3 bits of the result of group_of() are the number of the group.
constexpr float kLeast = 0x1p-24f;
constexpr uint32_t kGroupFactor = 160;
ZS_KERNEL constexpr uint32_t group_of(uint32_t bits) {
  return ((bits >> 16) * kGroupFactor) >> 16;
}
constexpr bool has_border_in_each_group(const EncodeTable& table) {
  for (uint32_t k = 0; k < kEntries; ++k)
    if (group_of(std::bit_cast<uint32_t>(table.above[k])) != group_of(std::bit_cast<uint32_t>(kLeast)) + k)
      return false;
  return group_of(std::bit_cast<uint32_t>(kLeast)) % kEntries == 0 &&
         group_of(std::bit_cast<uint32_t>(1.999f)) == group_of(std::bit_cast<uint32_t>(kLeast)) + kEntries - 1;
}

constexpr DecodeTable kSignedDecode = make_decode_table(true), kUnsignedDecode = make_decode_table(false);
constexpr EncodeTable kSignedEncode = make_encode_table(true), kUnsignedEncode = make_encode_table(false);
static_assert(has_border_in_each_group(kSignedEncode) && has_border_in_each_group(kUnsignedEncode));

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Decodes one vector of codes of a block whose scale is 1.
template <class V, bool kSigned>
typename V::F decode_vector(const void* codes) {
  constexpr const DecodeTable& kTable = kSigned ? kSignedDecode : kUnsignedDecode;
  typename V::F x, twice;
  const auto raised = V::load_codes(codes);
  if constexpr (kSigned) {
    twice = V::fma(raised, V::set(2), V::set(-2 * (kRaised + 127)));
    x = V::add(twice, V::flip_by(V::set(1), twice));
  } else {
    x = V::sub(raised, V::set(kRaised - 1.5f));
  }
  const auto entry = same_bits<typename V::I>(x) >> 23;
  const auto slope = V::lookup(V::table(kTable.slope), entry);
  const auto offset = V::lookup(V::table(kTable.offset), entry);
  if constexpr (kSigned) return V::fma(slope, x, V::flip_by(offset, twice));
  return V::min(V::fma(slope, x, offset), V::set(1));
}

// Decodes kScaledNumel codes, and multiplies the values by `scale`.
template <class V, bool kSigned>
void decode_block(const void* codes, float scale, float* values) {
  const auto factor = V::set(scale);
  for (int64_t i = 0; i < kScaledNumel; i += V::kWidth)
    V::template store<float>(values + i, V::mul(decode_vector<V, kSigned>(at(codes, i)), factor));
}

// The factors that bring the values of a block to magnitudes up to 1. There are two, because the reciprocal of a
// subnormal scale could be infinite, and the reciprocal of a large scale could be subnormal.
struct BlockFactors {
  float first, second;
};
ZS_KERNEL inline BlockFactors factors_of(float scale) {
  const float first = scale < 0x1p-60f ? 0x1p90f : scale > 0x1p60f ? 0x1p-40f : 1.0f;
  return {first, scale > 0 ? 1.0f / (scale * first) : 0.0f};
}

// Multiplies kScaledNumel values by both factors, and encodes the products. The largest magnitude of the products must
// be about 1, or 0. If kHasFirst is false, factors.first must be 1.
template <class V, bool kSigned, bool kHasFirst>
void encode_values(const float* values, BlockFactors factors, void* codes) {
  using I = typename V::I;
  constexpr const EncodeTable& kTable = kSigned ? kSignedEncode : kUnsignedEncode;
  const auto above = V::table(kTable.above), slope = V::table(kTable.slope), offset = V::table(kTable.offset),
             most = V::table(kTable.most);
  const auto code_of = [&](auto value) {
    const auto scaled = V::mul(kHasFirst ? V::mul(value, V::set(factors.first)) : value, V::set(factors.second));
    const auto magnitude = V::max_abs(V::set(kLeast), scaled);
    const I group = V::multiply_high(same_bits<I>(magnitude), kGroupFactor);
    const I entry = V::count_above(magnitude, V::lookup(above, group), group);
    const auto place = V::fma(magnitude, V::lookup(slope, entry), V::lookup(offset, entry));
    const auto nearest = V::min(place, V::lookup(most, entry));
    return kSigned ? V::truncate(V::flip_by(nearest, scaled)) + 127u : V::truncate(nearest);
  };
  constexpr int kAtOnce = 4;  // vectors
  for (int64_t i = 0; i < kScaledNumel; i += kAtOnce * V::kWidth) {
    I several[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k) several[k] = code_of(V::template load<float>(values + i + k * V::kWidth));
    // The map does not have the value -1. This value gets the code -1, which is stored as 0, the code of the lowest
    // value of the map.
    V::store_codes(at(codes, i), several);
  }
}

// Encodes a block. `scale` is the largest magnitude of its values, or at most 1 % more (encode_block() of kernels.cpp).
template <class V, bool kSigned>
void encode_block(const float* values, float scale, void* codes) {
  const BlockFactors factors = factors_of(scale);
  if (factors.first == 1) return encode_values<V, kSigned, false>(values, factors, codes);
  encode_values<V, kSigned, true>(values, factors, codes);
}

template <class V>
void decode_kernel(const void* codes, float scale, bool is_signed, float* values) {
  is_signed ? decode_block<V, true>(codes, scale, values) : decode_block<V, false>(codes, scale, values);
}
template <class V>
void encode_kernel(const float* values, float scale, bool is_signed, void* codes) {
  is_signed ? encode_block<V, true>(values, scale, codes) : encode_block<V, false>(values, scale, codes);
}

// One moment of an optimizer, decoded block by block for an update. Null codes mean that the optimizer has no such
// moment.
template <class V, bool kSigned>
class CodedMoment {
 public:
  CodedMoment(void* codes, float* scales) : codes_(codes), scales_(scales) {}
  float* values() { return values_; }

  // Decodes a block of `numel` elements to values(). `index` is the first element of the block.
  void decode(int64_t index, int64_t numel) {
    if (codes_ == nullptr) return;
    const void* from = at(codes_, index);
    if (numel < kScaledNumel) from = std::memcpy(last_, from, static_cast<size_t>(numel));
    __builtin_prefetch(at(from, 2 * kScaledNumel));
    decode_block<V, kSigned>(from, scales_[index / kScaledNumel], values_);
  }
  // Sets the scale of the block to the largest magnitude among its new values.
  void set_scale(int64_t index, int64_t numel) {
    if (codes_ == nullptr) return;
    std::fill(values_ + numel, values_ + kScaledNumel, 0.0f);
    // A moment that has overflowed becomes the largest float, because an infinite scale would make the block NaN.
    scales_[index / kScaledNumel] =
        std::min(max_abs<V, float>(values_, kScaledNumel), std::numeric_limits<float>::max());
  }
  void encode(int64_t index, int64_t numel) {
    if (codes_ == nullptr) return;
    void* const to = at(codes_, index);
    encode_block<V, kSigned>(values_, scales_[index / kScaledNumel], numel < kScaledNumel ? last_ : to);
    if (numel < kScaledNumel) std::memcpy(to, last_, static_cast<size_t>(numel));
  }

 private:
  void* codes_;
  float* scales_;
  alignas(64) float values_[kScaledNumel];
  alignas(64) uint8_t last_[kScaledNumel] = {};
};

// Runs an optimizer step on moments in codes, block by block. For each block, it decodes both moments to the memory of
// first() and second(), calls `step` for every vector of the block, and encodes the moments again.
template <class V, typename Param>
class CodedBlocks {
 public:
  CodedBlocks(const StepBuffers& buffers, void* first, void* second)
      : numel_(buffers.numel), first_(first, buffers.scales[0]), second_(second, buffers.scales[1]) {
    if constexpr (V::kStreams && !std::is_void_v<Param>)
      streams_ = numel_ >= kLargeNumel && is_aligned_to<V, Param>(buffers.param);
  }
  float* first() { return first_.values(); }
  float* second() { return second_.values(); }

  template <class Step>
  void for_each(const Step& step) {
    for (int64_t begin = 0; begin < numel_; begin += kScaledNumel) {
      const int64_t numel = std::min(kScaledNumel, numel_ - begin);
      first_.decode(begin, numel);
      second_.decode(begin, numel);
      run<Step>(step, begin, numel);
      first_.encode(begin, numel);
      second_.encode(begin, numel);
    }
    if constexpr (V::kStreams)
      if (streams_) V::end_streams();
  }

 private:
  template <class Step>
  void run(const Step& step, int64_t begin, int64_t numel) {
    if constexpr (V::kStreams && !std::is_void_v<Param>)
      if (streams_) return run_at<Step, StreamingBody<V>>(step, begin, numel);
    run_at<Step, Body<V>>(step, begin, numel);
  }
  // Runs the step, and sets the scales of the block. If the step has two halves, each half has a loop of its own,
  // because a processor overlaps more iterations if the chain of operations of an iteration is short. The scales are
  // set between the two loops, so that the processor can overlap this work with the second loop.
  template <class Step, class Where>
  void run_at(const Step& step, int64_t begin, int64_t numel) {
    const int64_t end = begin + numel, whole_end = end - numel % V::kWidth;
    const Tail<V> tail{whole_end, static_cast<int>(end - whole_end)};
    const auto set_scales = [&] {
      first_.set_scale(begin, numel);
      second_.set_scale(begin, numel);
    };
    if constexpr (Step::kHalves) {
      alignas(64) float between[kScaledNumel];
      const auto at_place = [&](int64_t i) { return between + (i - begin); };
      for (int64_t i = begin; i < whole_end; i += V::kWidth)
        V::template store<float>(at_place(i), step.first_half(Where{i}));
      if (tail.lanes > 0) V::template store<float>(at_place(whole_end), step.first_half(tail));
      set_scales();
      for (int64_t i = begin; i < whole_end; i += V::kWidth)
        step.second_half(Where{i}, V::template load<float>(at_place(i)));
      if (tail.lanes > 0) step.second_half(tail, V::template load<float>(at_place(whole_end)));
    } else {
      for (int64_t i = begin; i < whole_end; i += V::kWidth) step(Where{i});
      if (tail.lanes > 0) step(tail);
      set_scales();
    }
  }

  int64_t numel_;
  bool streams_ = false;
  CodedMoment<V, true> first_;
  CodedMoment<V, false> second_;
};

}  // namespace
}  // namespace zeroshard::kernels
