#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "device/device_kernels.h"
#include "device/exact_sum.h"
#include "kernels/support.h"
#include "layout/shard_layout.h"

// The kernels of a device beside the CPU's, bit by bit: all types, lengths and alignments. Each check fails the test.
namespace zeroshard::kernels::test {

// A buffer of the host's and its guards, on a device.
class OnDevice {
 public:
  OnDevice(const Buffer& buffer, c10::Device device)
      : offset_(buffer.offset()), bytes_(of(const_cast<uint8_t*>(buffer.bytes().data()), buffer).to(device)) {}

  void* data() const { return static_cast<char*>(bytes_.data_ptr()) + offset_; }
  // Equal in every element, and intact around them.
  ::testing::AssertionResult is(const Buffer& want) const {
    Buffer got = want;
    of(got.bytes().data(), got).copy_(bytes_);
    return same(got, want);
  }

 private:
  static at::Tensor of(uint8_t* data, const Buffer& buffer) {
    return at::from_blob(data, {static_cast<int64_t>(buffer.bytes().size())}, at::TensorOptions().dtype(at::kByte));
  }
  size_t offset_;
  at::Tensor bytes_;
};

// One element of a type is `element` bytes; a buffer begins at any of them.
inline Buffer anywhere(DType dtype, int64_t numel, Random& random, bool special = false) {
  Buffer buffer(dtype, numel, static_cast<int>(random() % 9) * int(element_size(dtype)));
  fill(buffer, random, special);
  return buffer;
}

// Around the width of a vector, of a warp's and a block's share.
inline std::vector<int64_t> device_lengths() {
  return {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 127, 128, 129, 1023, 1024, 1025, 5000};
}

inline void expect_packs(const DeviceKernels& kernels, c10::Device device) {
  SeededRandom random(1);
  for (const DType from : kAllDtypes) {
    for (const DType to : kAllDtypes) {
      for (const int64_t numel : device_lengths()) {
        const Buffer src = anywhere(from, numel, random, /*special=*/true);
        Buffer want = anywhere(to, numel, random);
        const OnDevice there(src, device), dst(want, device);
        pack(*kernels.table, there.data(), from, dst.data(), to, 0.37F, numel);
        pack(*scalar_table(), src.at(0), from, want.data(), to, 0.37F, numel);
        ASSERT_TRUE(dst.is(want)) << name_of(from) << " to " << name_of(to) << ", " << numel;
        pack_add(*kernels.table, there.data(), from, dst.data(), to, 0.37F, numel);
        pack_add(*scalar_table(), src.at(0), from, want.data(), to, 0.37F, numel);
        ASSERT_TRUE(dst.is(want)) << name_of(from) << " added to " << name_of(to) << ", " << numel;
      }
    }
  }
}

// More tensors than one launch takes; some are empty.
inline void expect_packs_of_many(const DeviceKernels& kernels, c10::Device device) {
  SeededRandom random(2);
  for (const DType from : kAllDtypes) {
    for (const DType to : kAllDtypes) {
      std::vector<Buffer> wanted;
      std::vector<OnDevice> sources, results;
      std::vector<PackItem> items;
      for (int i = 0; i < 150; ++i) {
        const int64_t numel = random.between(0, i % 50 == 0 ? 20000 : 300);
        const Buffer src = anywhere(from, numel, random);
        Buffer want = anywhere(to, numel, random);
        sources.emplace_back(src, device);
        results.emplace_back(want, device);
        items.push_back({sources.back().data(), results.back().data(), numel});
        pack(*scalar_table(), src.at(0), from, want.data(), to, 0.5F, numel);
        wanted.push_back(std::move(want));
      }
      kernels.pack_all(items, from, to, 0.5F);
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_TRUE(results[i].is(wanted[i])) << name_of(from) << " to " << name_of(to) << ", tensor " << i;
    }
  }
}

inline void expect_sums(const DeviceKernels& kernels, c10::Device device) {
  SeededRandom random(3);
  for (const DType from : kAllDtypes) {
    for (const DType to : kAllDtypes) {
      for (int count = 1; count <= 9; ++count) {
        const int64_t numel = random.between(0, count == 5 ? 9000 : 90);
        const Buffer all = anywhere(from, numel * count, random);
        const OnDevice there(all, device);
        std::vector<const void*> pieces, device_pieces;
        for (int64_t piece = 0; piece < count; ++piece) {
          const int64_t begin = piece * numel * element_size(from);
          pieces.push_back(static_cast<const char*>(all.at(0)) + begin);
          device_pieces.push_back(static_cast<const char*>(there.data()) + begin);
        }
        for (const bool accumulate : {false, true}) {
          Buffer want = anywhere(to, numel, random);
          const OnDevice out(want, device);
          sum_in_order(*kernels.table, device_pieces, from, 0.25F, out.data(), to, accumulate, numel);
          sum_in_order(*scalar_table(), pieces, from, 0.25F, want.data(), to, accumulate, numel);
          ASSERT_TRUE(out.is(want)) << count << " pieces of " << numel << ", " << name_of(from) << " to "
                                    << name_of(to);
        }
      }
    }
  }
}

// `update(table, buffers, first, second)`: one update with two states. `param` is null where the master weights are it.
// `takes`: every third parameter was written.
template <class Update>
void expect_update(const DeviceKernels& kernels, c10::Device device, DType grad_dtype, const DType* param_dtype,
                   bool takes, int64_t numel, Random& random, const Update& update) {
  const DType low_dtype = param_dtype ? *param_dtype : DType::kFloat32;
  Buffer master = anywhere(DType::kFloat32, numel, random), first = anywhere(DType::kFloat32, numel, random);
  Buffer second = anywhere(DType::kFloat32, numel, random), low = anywhere(low_dtype, numel, random);
  for (int64_t i = 0; i < numel; ++i) second.set(i, std::fabs(second.get(i)));
  const Buffer grad = anywhere(grad_dtype, numel, random);
  Buffer want = master;
  if (takes) {
    const Buffer written = low;
    pack(*scalar_table(), master.at(0), DType::kFloat32, low.data(), low_dtype, 1, numel);
    for (int64_t i = 0; i < numel; i += 3) {
      if (std::memcmp(low.at(i), written.at(i), size_t(element_size(low_dtype))) != 0) want.set(i, written.get(i));
      low.set(i, written.get(i));
    }
  }
  const OnDevice masters(master, device), firsts(first, device), seconds(second, device), lows(low, device);
  const OnDevice grads(grad, device);
  const auto buffers = [&](void* weights, const void* gradients, void* rounded) {
    return StepBuffers{
        static_cast<float*>(weights), gradients, grad_dtype, param_dtype ? rounded : nullptr, low_dtype, 0.43F, numel};
  };
  StepBuffers there = buffers(masters.data(), grads.data(), lows.data());
  there.takes_written = takes;
  update(*kernels.table, there, static_cast<float*>(firsts.data()), static_cast<float*>(seconds.data()));
  update(*scalar_table(), buffers(want.data(), grad.at(0), low.data()), first.floats(), second.floats());
  ASSERT_TRUE(masters.is(want)) << numel << (takes ? ", with written parameters" : "") << ", " << name_of(grad_dtype)
                                << " " << name_of(low_dtype);
  ASSERT_TRUE(firsts.is(first)) << numel;
  ASSERT_TRUE(seconds.is(second)) << numel;
  ASSERT_TRUE(lows.is(low)) << numel;
}

template <class Update>
void expect_updates(const DeviceKernels& kernels, c10::Device device, const Update& update) {
  SeededRandom random(4);
  for (const DType grad : kAllDtypes) {
    for (const int64_t numel : device_lengths()) {
      expect_update(kernels, device, grad, nullptr, /*takes=*/false, numel, random, update);
      for (const DType& param : kAllDtypes)
        for (const bool takes : {false, true})
          expect_update(kernels, device, grad, &param, takes, numel, random, update);
    }
  }
}

inline void expect_updates_of_all_optimizers(const DeviceKernels& kernels, c10::Device device) {
  for (const bool decoupled : {false, true}) {
    const AdamArgs args{.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = decoupled, .step = 3};
    expect_updates(kernels, device, [&args](const KernelTable& table, const StepBuffers& b, float* one, float* two) {
      adam(table, b, one, two, args);
    });
  }
  for (const bool nesterov : {false, true}) {
    const SgdArgs args{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = nesterov};
    expect_updates(kernels, device, [&args](const KernelTable& table, const StepBuffers& b, float* one, float*) {
      sgd(table, b, one, args);
    });
  }
  expect_updates(kernels, device, [](const KernelTable& table, const StepBuffers& b, float* one, float*) {
    lion(table, b, one, {.lr = 0.01, .weight_decay = 0.1});
  });
  expect_updates(kernels, device, [](const KernelTable& table, const StepBuffers& b, float*, float* two) {
    adagrad(table, b, two, {.lr = 0.01, .lr_decay = 0.01, .weight_decay = 0.1, .step = 2});
  });
}

// By blocks of kBlockNumel elements in fp64, by halves; blocks exactly.
inline ExactSum squares_on_host(const Buffer& buffer) {
  ExactSum sum;
  for (int64_t begin = 0; begin < buffer.numel(); begin += kBlockNumel) {
    std::vector<double> block(size_t{kBlockNumel}, 0.0);
    for (int64_t i = begin; i < std::min(buffer.numel(), begin + kBlockNumel); ++i) {
      const double value = buffer.get(i);
      block[size_t(i - begin)] = value * value;
    }
    for (size_t half = block.size() / 2; half > 0; half /= 2)
      for (size_t i = 0; i < half; ++i) block[i] += block[i + half];
    sum.add(block[0]);
  }
  return sum;
}

// Twice into the same limbs, so that nothing is overwritten.
inline ExactSum squares_on_device(const DeviceKernels& kernels, const Buffer& buffer, c10::Device device) {
  const OnDevice there(buffer, device);
  const int64_t limbs = ExactSum::kNumLimbs;
  const at::Tensor sums = at::zeros({limbs}, at::TensorOptions().dtype(at::kLong)).to(device);
  for (int i = 0; i < 2; ++i)
    kernels.add_squares(there.data(), buffer.dtype(), buffer.numel(), static_cast<int64_t*>(sums.data_ptr()));
  ExactSum sum;
  at::from_blob(sum.limbs().data(), {limbs}, at::TensorOptions().dtype(at::kLong)).copy_(sums);
  return sum;
}

inline void expect_squares(const DeviceKernels& kernels, c10::Device device) {
  SeededRandom random(5);
  // The last is more than all blocks of a launch take at once.
  for (const int64_t numel : {0, 1, 1023, 1024, 1025, 5000, 2048 * 1024 + 1030}) {
    for (const DType dtype : kAllDtypes) {
      if (numel > 10000 && dtype == DType::kFloat16) continue;  // the host is slow at these
      const Buffer values = anywhere(dtype, numel, random);
      ExactSum want = squares_on_host(values);
      want.add(want);
      EXPECT_EQ(squares_on_device(kernels, values, device).value(), want.value()) << name_of(dtype) << ", " << numel;
    }
  }
  Buffer values(DType::kFloat32, 3000);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    values.set(2500, bad);
    EXPECT_FALSE(squares_on_device(kernels, values, device).is_finite()) << bad;
  }
}

// Parameters that are their rounded master weights, but for some; equal NaN are no write.
inline void expect_takes_what_was_written(const DeviceKernels& kernels, c10::Device device) {
  SeededRandom random(6);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t numel : device_lengths()) {
      for (const int written : {0, 1, 3}) {
        Buffer master = anywhere(DType::kFloat32, numel, random, /*special=*/true),
               param = anywhere(dtype, numel, random);
        pack(*scalar_table(), master.at(0), DType::kFloat32, param.data(), dtype, 1, numel);
        Buffer want = master;
        for (int i = 0; i < written && numel > 0; ++i) {
          const int64_t at = random.between(0, int(numel) - 1);
          param.set(at, 3.0F + static_cast<float>(i));
          want.set(at, 3.0F + static_cast<float>(i));
        }
        const OnDevice masters(master, device), params(param, device);
        kernels.take_written(static_cast<float*>(masters.data()), params.data(), dtype, numel);
        ASSERT_TRUE(masters.is(want)) << name_of(dtype) << ", " << numel << ", " << written;
        ASSERT_TRUE(params.is(param));
      }
    }
  }
}

inline int64_t checksum_on_device(const DeviceKernels& kernels, const void* data, int64_t bytes, c10::Device device) {
  const at::Tensor sum = at::zeros({1}, at::TensorOptions().dtype(at::kLong)).to(device);
  kernels.add_checksum(data, bytes, static_cast<int64_t*>(sum.data_ptr()));
  return sum.cpu().const_data_ptr<int64_t>()[0];
}

// Wherever the memory lies; of each change, another one: a bit, two elements that change places, a length.
inline void expect_checksums(const DeviceKernels& kernels, c10::Device device) {
  SeededRandom random(7);
  for (const int64_t numel : {1, 2, 3, 4, 5, 63, 64, 1023, 5001, 2048 * 256 * 4 + 3}) {
    std::vector<int64_t> seen;
    Buffer values(DType::kBFloat16, numel, 0);
    fill(values, random, /*special=*/false);
    const auto see = [&](int64_t elements) {
      const OnDevice there(values, device);
      seen.push_back(checksum_on_device(kernels, there.data(), elements * 2, device));
    };
    see(numel);
    for (int offset = 2; offset < 18; offset += 2) {
      Buffer elsewhere(DType::kBFloat16, numel, offset);
      std::memcpy(elsewhere.data(), values.data(), size_t(numel) * 2);
      const OnDevice there(elsewhere, device);
      ASSERT_EQ(checksum_on_device(kernels, there.data(), numel * 2, device), seen[0]) << numel << " at " << offset;
    }
    auto* const bits = static_cast<uint16_t*>(values.data());
    for (int i = 0; i < 8; ++i) {
      bits[random.between(0, int(numel) - 1)] ^= static_cast<uint16_t>(1U << random.between(0, 15));
      see(numel);
    }
    if (numel > 1) {
      bits[0] = 1;
      bits[numel - 1] = 2;
      see(numel);
      std::swap(bits[0], bits[numel - 1]);
      see(numel);
      see(numel - 1);
    }
    const size_t count = seen.size();
    std::sort(seen.begin(), seen.end());
    // The same bit may have been turned twice.
    const auto different = std::unique(seen.begin(), seen.end()) - seen.begin();
    EXPECT_GE(different, numel < 4 ? 2 : std::ptrdiff_t(count) - 2) << numel;
  }
  EXPECT_EQ(checksum_on_device(kernels, nullptr, 0, device), 0);
}

// Values of blocks with scales of any size, among them 0, subnormal and infinite ones.
inline std::vector<float> values_of_blocks(int64_t numel, bool is_signed, Random& random) {
  constexpr float kScales[] = {1, 1e-3F, 1e-20F, 1e-37F, 1e-44F, 3e30F, 3e38F, 0};
  std::vector<float> values(size_t(numel), 0.0F);
  for (int64_t i = 0; i < numel; ++i) {
    const float part = float(double(random() % 2001) / 1000 - 1);
    const float value = part * part * part * kScales[size_t(i / kScaledNumel) % std::size(kScales)];
    values[size_t(i)] = is_signed ? value : std::fabs(value);
  }
  if (numel > 3000) values[2999] = std::numeric_limits<float>::infinity();
  return values;
}

// The codes and scales that an update on the CPU stores.
struct StoredCodes {
  StoredCodes(const std::vector<float>& values, bool is_signed)
      : codes(values.size()), scales((values.size() + kScaledNumel - 1) / kScaledNumel) {
    for (size_t begin = 0; begin < values.size(); begin += kScaledNumel) {
      const size_t count = std::min(size_t{kScaledNumel}, values.size() - begin);
      float block[kScaledNumel] = {}, most = 0;
      std::copy_n(values.begin() + int64_t(begin), count, block);
      for (const float value : block) most = std::max(most, std::fabs(value));
      most = std::min(most, std::numeric_limits<float>::max());
      uint8_t of_block[kScaledNumel];
      scalar_table()->encode(block, most, is_signed, of_block);
      std::copy_n(of_block, count, codes.begin() + int64_t(begin));
      scales[begin / kScaledNumel] = most;
    }
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

// `encode(values, codes, scales, is_signed)` and `decode(codes, scales, is_signed, to)` work on tensors of `device`.
template <class Encode, class Decode>
void expect_codes(c10::Device device, const Encode& encode, const Decode& decode) {
  SeededRandom random(9);
  for (const bool is_signed : {true, false}) {
    for (const int64_t numel : {1, 255, 256, 257, 3000, 5000}) {
      const std::vector<float> values = values_of_blocks(numel, is_signed, random);
      StoredCodes want(values, is_signed);
      const at::Tensor from = at::from_blob(const_cast<float*>(values.data()), {numel}).to(device);
      const at::Tensor codes = at::zeros({numel}, at::kByte).to(device);
      const at::Tensor scales = at::zeros({int64_t(want.scales.size())}).to(device), back = at::zeros_like(from);
      encode(from, codes, scales, is_signed);
      const at::Tensor got = codes.cpu(), of_blocks = scales.cpu();
      for (int64_t i = 0; i < numel; ++i)
        ASSERT_EQ(got.data_ptr<uint8_t>()[i], want.codes[size_t(i)]) << values[size_t(i)] << ", " << i;
      ASSERT_EQ(std::memcmp(of_blocks.const_data_ptr(), want.scales.data(), want.scales.size() * 4), 0);
      decode(codes, scales, is_signed, back);
      std::vector<float> expected(values.size());
      kernels::decode(*scalar_table(), {want.codes.data(), want.scales.data(), is_signed}, 0, numel, expected.data());
      const at::Tensor decoded = back.cpu();
      for (int64_t i = 0; i < numel; ++i) ASSERT_EQ(decoded.data_ptr<float>()[i], expected[size_t(i)]) << i;
    }
  }
}

inline void expect_codes(const DeviceKernels& kernels, c10::Device device) {
  const auto coded = [](const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
    return CodedValues{codes.data_ptr(), scales.data_ptr<float>(), is_signed};
  };
  expect_codes(
      device,
      [&](const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
        kernels.encode(values.const_data_ptr<float>(), values.numel(), coded(codes, scales, is_signed));
      },
      [&](const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to) {
        kernels.decode(coded(codes, scales, is_signed), codes.numel(), to.data_ptr<float>());
      });
}

}  // namespace zeroshard::kernels::test
