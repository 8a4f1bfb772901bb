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
// are positive. These values lie evenly in 10^(i-6) * [0.1, 1]. Codes number the values in ascending order. Let x = 2 *
// |code - 127| + 1 for signed codes, or code + 1.5 for unsigned codes, and let m in [1, 2) be the mantissa of x. The
// exponent of x is 0 for the value 0, i + 1 for decade i, and 8 for the value 1. The value in decade i is 10^(i-6) *
// (0.9 m - 0.8). So decoding and encoding each need only a lookup in 16 entries and one fma.
namespace zeroshard::kernels {
namespace {

struct Code8 {
  uint8_t bits;
};

constexpr int kDecades = 7, kEntries = 16;  // 9 entries are used

struct DecodeTable {
  alignas(64) float slope[kEntries] = {}, offset[kEntries] = {};
};
constexpr int kOctaves = 32;
constexpr int kLeastExponent = 127 - 24;  // all maps encode smaller magnitudes as 0
struct EncodeTable {
  // A magnitude above `above[k]` has at least entry k + 1.
  float above[kDecades + 1] = {};
  // Indexed by the last 5 bits of a magnitude's exponent: the border in that octave (there is at most one), and the
  // entry below the border.
  alignas(64) float octave_above[kOctaves] = {}, octave_entry[kOctaves] = {};
  alignas(64) float slope[kEntries] = {}, offset[kEntries] = {}, most[kEntries] = {};
};

constexpr double kDecadeEnds[kDecades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};

constexpr DecodeTable make_decode_table() {
  DecodeTable table;
  for (int i = 0; i < kDecades; ++i) {
    table.slope[i + 1] = static_cast<float>(0.9 * kDecadeEnds[i]);
    table.offset[i + 1] = static_cast<float>(-0.8 * kDecadeEnds[i]);
  }
  table.offset[kDecades + 1] = 1;
  return table;
}

// Makes the table for encoding. Each value of the map stands for the magnitudes that are nearest to it, up to the
// middle between it and the next value.
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
  const double last = is_signed ? 128 : 255;
  table.offset[0] = 0.25f;
  table.most[0] = 0.5f;
  table.offset[kDecades + 1] = table.most[kDecades + 1] = static_cast<float>(last + 0.25);
  for (uint32_t exponent = kLeastExponent; exponent <= 127; ++exponent) {
    const float low = std::bit_cast<float>(exponent << 23);
    uint32_t entry = 0;
    float border = std::numeric_limits<float>::infinity();
    for (const float above : table.above) {
      if (above < low) ++entry;
      if (above >= low && above < 2 * low) border = above;
    }
    table.octave_above[exponent % kOctaves] = border;
    table.octave_entry[exponent % kOctaves] = std::bit_cast<float>(entry);
  }
  return table;
}

constexpr DecodeTable kDecodeTable = make_decode_table();
constexpr EncodeTable kSignedEncode = make_encode_table(true), kUnsignedEncode = make_encode_table(false);

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Decodes kScaledNumel codes, and multiplies the values by `scale`.
template <class V, bool kSigned>
void decode_block(const void* codes, float scale, float* values) {
  using I = typename V::I;
  const auto slope = V::table(kDecodeTable.slope), offset = V::table(kDecodeTable.offset);
  const auto factor = V::set(scale);
  for (int64_t i = 0; i < kScaledNumel; i += V::kWidth) {
    const I code = V::load_codes(at(codes, i));
    I sign{};
    typename V::F x;
    if constexpr (kSigned) {
      const I distance = code - 127u;
      sign = distance >> 31;
      x = V::from_integer((((distance ^ (I{} - sign)) + sign) << 1) + 1u);
    } else {
      x = V::add(V::from_integer(code), V::set(1.5f));
    }
    const I bits = same_bits<I>(x);
    const I entry = (bits >> 23) - 127u;
    const auto mantissa = same_bits<typename V::F>((bits & 0x7fffffu) | 0x3f800000u);
    auto value = V::fma(V::lookup(slope, entry), mantissa, V::lookup(offset, entry));
    if constexpr (kSigned) value = same_bits<typename V::F>(same_bits<I>(value) | (sign << 31));
    V::template store<float>(values + i, V::mul(value, factor));
  }
}

// Returns how many borders of the table are below the magnitude.
template <class V>
typename V::I entry_of(const EncodeTable& table, typename V::F magnitude) {
  using I = typename V::I;
  if constexpr (V::kWideTables) {
    const I octave = (same_bits<I>(magnitude) >> 23) & (kOctaves - 1u);
    const auto border = V::lookup_wide(table.octave_above, octave);
    return V::count_above(magnitude, border, same_bits<I>(V::lookup_wide(table.octave_entry, octave)));
  } else {
    I entry{};
    for (const float above : table.above) entry = V::count_above(magnitude, V::set(above), entry);
    return entry;
  }
}

// Multiplies kScaledNumel values by `first` and then by `second`, and encodes the products. Their largest magnitude
// must be 1 or 0.
template <class V, bool kSigned, bool kHasFirst>
void encode_values(const float* values, typename V::F first, typename V::F second, void* codes) {
  using I = typename V::I;
  constexpr const EncodeTable& kTable = kSigned ? kSignedEncode : kUnsignedEncode;
  const auto slope = V::table(kTable.slope), offset = V::table(kTable.offset), most = V::table(kTable.most);
  for (int64_t i = 0; i < kScaledNumel; i += V::kWidth) {
    const auto value = V::template load<float>(values + i);
    const I bits = same_bits<I>(value);
    const auto scaled = V::mul(kHasFirst ? V::mul(value, first) : value, second);
    const auto magnitude = V::max_abs(V::set(0x1p-24f), scaled);
    const I entry = entry_of<V>(kTable, magnitude);
    const auto place = V::fma(magnitude, V::lookup(slope, entry), V::lookup(offset, entry));
    I code = V::truncate(V::min(place, V::lookup(most, entry)));
    if constexpr (kSigned) {  // -1 is no value of the map, and gets the code of the last value before it
      const I mask = I{} - (bits >> 31);
      code = code + 127u + (mask & ((code >> 7) - (code << 1)));
    }
    V::store_codes(at(codes, i), code);
  }
}

// Encodes a block. `scale` is the largest magnitude of its values.
template <class V, bool kSigned>
void encode_block(const float* values, float scale, void* codes) {
  // The scale is applied in two factors, because the reciprocal of a subnormal would be infinite, and the reciprocal of
  // a large number would be subnormal.
  const float nearer = scale < 0x1p-60f ? 0x1p90f : scale > 0x1p60f ? 0x1p-40f : 1.0f;
  const auto first = V::set(nearer), second = V::set(scale > 0 ? 1.0f / (scale * nearer) : 0.0f);
  if (nearer == 1) return encode_values<V, kSigned, false>(values, first, second, codes);
  encode_values<V, kSigned, true>(values, first, second, codes);
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

  // Decodes a block of `numel` elements. `index` is the first element of the block.
  void decode(int64_t index, int64_t numel) {
    if (codes_ == nullptr) return;
    const void* from = at(codes_, index);
    if (numel < kScaledNumel) from = std::memcpy(last_, from, static_cast<size_t>(numel));
    __builtin_prefetch(at(from, 2 * kScaledNumel));
    decode_block<V, kSigned>(from, scales_[index / kScaledNumel], values_);
  }
  void encode(int64_t index, int64_t numel) {
    if (codes_ == nullptr) return;
    std::fill(values_ + numel, values_ + kScaledNumel, 0.0f);
    // A moment that has overflowed becomes the largest float, because an infinite scale would make the block NaN.
    const float scale = std::min(max_abs<V, float>(values_, kScaledNumel), std::numeric_limits<float>::max());
    scales_[index / kScaledNumel] = scale;
    void* const to = at(codes_, index);
    encode_block<V, kSigned>(values_, scale, numel < kScaledNumel ? last_ : to);
    if (numel < kScaledNumel) std::memcpy(to, last_, static_cast<size_t>(numel));
  }

 private:
  void* codes_;
  float* scales_;
  alignas(64) float values_[kScaledNumel];
  alignas(64) uint8_t last_[kScaledNumel] = {};
};

// Runs an optimizer step on moments in codes, block by block. It decodes a block to the memory of values(), calls
// `step` at every place of the block, and encodes the block again.
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
      const int64_t numel = std::min(kScaledNumel, numel_ - begin), whole = numel - numel % V::kWidth;
      first_.decode(begin, numel);
      second_.decode(begin, numel);
      run<Step>(step, begin, begin + whole);
      if (whole < numel) step(Tail<V>{begin + whole, static_cast<int>(numel - whole)});
      first_.encode(begin, numel);
      second_.encode(begin, numel);
    }
    if constexpr (V::kStreams)
      if (streams_) V::end_streams();
  }

 private:
  template <class Step>
  void run(const Step& step, int64_t begin, int64_t end) const {
    if constexpr (V::kStreams && !std::is_void_v<Param>) {
      if (streams_) {
        for (int64_t i = begin; i < end; i += V::kWidth) step(StreamingBody<V>{{i}});
        return;
      }
    }
    for (int64_t i = begin; i < end; i += V::kWidth) step(Body<V>{i});
  }

  int64_t numel_;
  bool streams_ = false;
  CodedMoment<V, true> first_;
  CodedMoment<V, false> second_;
};

}  // namespace
}  // namespace zeroshard::kernels
