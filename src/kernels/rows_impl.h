#pragma once
#include <cmath>

#include "kernels/kernels_impl.h"

namespace zeroshard::kernels {
namespace {

// The number of lanes of a sum in fp32. Element i is added to lane i % kDotLanes, and then tree_sum() adds the lanes.
constexpr int kDotLanes = 32;

// Returns the sum of a[i] * (offset + b[i]) * c[i].
template <class V>
float sum_of_products(const float* a, float offset, const float* b, const float* c, int64_t numel) {
  constexpr int kVectors = kDotLanes / V::kWidth;
  const auto shift = V::set(offset);
  typename V::F sums[kVectors];
#pragma GCC unroll 32
  for (auto& sum : sums) sum = V::set(0);
  const auto add_lanes = [&](const float* left, const float* middle, const float* right) {
#pragma GCC unroll 32
    for (int v = 0; v < kVectors; ++v) {
      const Body<V> where{v * V::kWidth};
      const auto scale = V::add(shift, where.template load<float>(middle));
      sums[v] = V::fma(V::mul(where.template load<float>(left), scale), where.template load<float>(right), sums[v]);
    }
  };
  int64_t i = 0;
  for (; i + kDotLanes <= numel; i += kDotLanes) add_lanes(a + i, b + i, c + i);
  if (i < numel) {  // the missing elements are 0, because adding 0 changes no lane
    float padded[3][kDotLanes] = {};
    const size_t bytes = sizeof(float) * static_cast<size_t>(numel - i);
    std::memcpy(padded[0], a + i, bytes);
    std::memcpy(padded[1], b + i, bytes);
    std::memcpy(padded[2], c + i, bytes);
    add_lanes(padded[0], padded[1], padded[2]);
  }
  float lanes[kDotLanes];
  for (int v = 0; v < kVectors; ++v) V::template store<float>(lanes + v * V::kWidth, sums[v]);
  return tree_sum(lanes);
}

// The squares of a row are summed in fp64, in blocks of kMeanBlock elements. Element i of a block is added to lane i %
// kMeanLanes. Then tree_sum() adds the lanes, and the sums of the blocks are added in order.
constexpr int kMeanLanes = 32;
constexpr int64_t kMeanBlock = 1024;

template <class V>
double block_sum_of_squares(const float* x, int64_t numel) {
  constexpr int kVectors = kMeanLanes / V::kWidth, kLanesPerPart = V::kWidth / V::kParts;
  typename V::D sums[kVectors * V::kParts];
#pragma GCC unroll 64
  for (auto& sum : sums) sum = V::zero();
  const auto add = [&](const float* from) {
#pragma GCC unroll 64
    for (int v = 0; v < kVectors; ++v) {
      typename V::D parts[V::kParts];
      V::widen(V::template load<float>(from + v * V::kWidth), parts);
      for (int part = 0; part < V::kParts; ++part) {
        auto& sum = sums[v * V::kParts + part];
        sum = V::square_plus(parts[part], sum);
      }
    }
  };
  int64_t i = 0;
  for (; i + kMeanLanes <= numel; i += kMeanLanes) add(x + i);
  if (i < numel) {  // the missing elements are 0, because adding +0 changes no lane
    float padded[kMeanLanes] = {};
    std::memcpy(padded, x + i, sizeof(float) * static_cast<size_t>(numel - i));
    add(padded);
  }
  double lanes[kMeanLanes];
  for (int part = 0; part < kVectors * V::kParts; ++part) V::store_doubles(lanes + part * kLanesPerPart, sums[part]);
  return tree_sum(lanes);
}

template <class V>
double mean_square(const float* x, int64_t numel) {
  double total = 0;
  for (int64_t at = 0; at < numel; at += kMeanBlock)
    total += block_sum_of_squares<V>(x + at, numel - at < kMeanBlock ? numel - at : kMeanBlock);
  return total / static_cast<double>(numel);
}

template <class V>
void rms_norm_kernel(const RmsNorm& norm, const float* x, int64_t rows, float* y, float* inverse_rms) {
  const auto offset = V::set(norm.offset);
  for (int64_t row = 0; row < rows; ++row, x += norm.features, y += norm.features) {
    const double mean = mean_square<V>(x, norm.features);
    inverse_rms[row] = static_cast<float>(1 / std::sqrt(mean + norm.eps));
    const auto scale = V::set(inverse_rms[row]);
    for_each_vector<V>(norm.features, [&](auto where) {
      const auto weight = V::add(offset, where.template load<float>(norm.weight));
      where.template store<float>(y, V::mul(V::mul(where.template load<float>(x), scale), weight));
    });
  }
}

template <class V>
void rms_norm_backward_kernel(const RmsNorm& norm, const float* dy, const float* x, const float* inverse_rms,
                              int64_t rows, float* dx, float* dweight) {
  const auto offset = V::set(norm.offset);
  const int64_t features = norm.features;
  for (int64_t row = 0; row < rows; ++row, dy += features, x += features) {
    const double inverse = inverse_rms[row];
    const auto scale = V::set(inverse_rms[row]);
    if (dx != nullptr) {
      // d inverse_rms / dx = -inverse_rms^3 x / features
      const double products = sum_of_products<V>(dy, norm.offset, norm.weight, x, features);
      const double along = -products * inverse * inverse * inverse / static_cast<double>(features);
      const auto factor = V::set(static_cast<float>(along));
      for_each_vector<V>(features, [&](auto where) {
        const auto weight = V::add(offset, where.template load<float>(norm.weight));
        const auto direct = V::mul(V::mul(where.template load<float>(dy), weight), scale);
        where.template store<float>(dx, V::fma(where.template load<float>(x), factor, direct));
      });
      dx += features;
    }
    if (dweight == nullptr) continue;
    for_each_vector<V>(features, [&](auto where) {
      const auto normal = V::mul(where.template load<float>(x), scale);
      const auto sum = V::fma(where.template load<float>(dy), normal, where.template load<float>(dweight));
      where.template store<float>(dweight, sum);
    });
  }
}

template <class V>
void rotate_kernel(const Rotation& rotation, const float* x, int64_t x_stride, int64_t heads, float* y,
                   int64_t y_stride) {
  const int64_t half = rotation.features / 2;
  for (int64_t head = 0; head < heads; ++head, x += x_stride, y += y_stride) {
    for_each_vector<V>(half, [&](auto where) {
      const auto first = where.template load<float>(x), second = where.template load<float>(x + half);
      const auto sin1 = where.template load<float>(rotation.sin);
      const auto sin2 = where.template load<float>(rotation.sin + half);
      const auto straight1 = V::mul(first, where.template load<float>(rotation.cos));
      const auto straight2 = V::mul(second, where.template load<float>(rotation.cos + half));
      where.template store<float>(y, V::sub(straight1, V::mul(second, sin1)));
      where.template store<float>(y + half, V::add(straight2, V::mul(first, sin2)));
    });
  }
}

}  // namespace
}  // namespace zeroshard::kernels
