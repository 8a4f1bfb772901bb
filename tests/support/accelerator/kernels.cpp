#include "support/accelerator/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/align.h"
#include "device/device_kernels.h"
#include "device/device_squares.h"
#include "kernels/code_element.h"
#include "layout/shard_layout.h"
#include "support/accelerator/device.h"
#include "support/accelerator/memory.h"

namespace zeroshard::accelerator {
namespace {

using kernels::StepBuffers;

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

template <typename T>
T* real(T* address) {
  return const_cast<T*>(static_cast<const T*>(real_address(address)));
}

Access read(const void* data, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + uintptr_t(bytes), /*writes=*/false};
}
Access write(void* data, int64_t bytes) {
  Access access = read(data, bytes);
  access.writes = true;
  return access;
}

void launch(const void* data, const char* name, const std::vector<Access>& accesses, std::function<void()> work) {
  Streams::get().enqueue(current_stream(device_of(data)), WorkKind::kLaunch, name, accesses, std::move(work));
}

template <int kSrc, int kDst, bool kAdd>
void pack(const void* src, void* dst, float scale, int64_t numel) {
  if (numel == 0) return;
  launch(dst, kAdd ? "pack_add" : "pack",
         {read(src, numel * element_size(kTypes[kSrc])), write(dst, numel * element_size(kTypes[kDst]))},
         [src = real(src), dst = real(dst), scale, numel] {
           auto* const kernel = kAdd ? kernels::scalar_table()->pack_add : kernels::scalar_table()->pack;
           kernel[kSrc][kDst](src, dst, scale, numel);
         });
}

template <int kSrc, int kDst>
void sum_in_order(const void* const* pieces, int count, float scale, void* out, bool accumulate, int64_t numel) {
  if (numel == 0) return;
  std::vector<const void*> all;
  std::vector<Access> accesses;
  for (int i = 0; i < count; ++i) {
    all.push_back(real(pieces[i]));
    if (pieces[i] != out) accesses.push_back(read(pieces[i], numel * element_size(kTypes[kSrc])));
  }
  accesses.push_back(write(out, numel * element_size(kTypes[kDst])));
  launch(out, "sum_in_order", accesses, [all, scale, out = real(out), accumulate, numel] {
    kernels::scalar_table()->sum_in_order[kSrc][kDst](all.data(), int(all.size()), scale, out, accumulate, numel);
  });
}

double element(const void* data, DType dtype, int64_t index) {
  float value = 0;
  const auto* const at = static_cast<const char*>(data) + index * element_size(dtype);
  kernels::pack(at, dtype, &value, DType::kFloat32, 1, 1);
  return value;
}

// A parameter replaces its master weight if it is not that weight, rounded.
void take(float* master, const void* param, DType dtype, int64_t numel) {
  const auto size = size_t(element_size(dtype));
  std::vector<char> rounded(size_t(numel) * size, 0);
  kernels::pack(*kernels::scalar_table(), master, DType::kFloat32, rounded.data(), dtype, 1, numel);
  for (int64_t i = 0; i < numel; ++i)
    if (std::memcmp(&rounded[size_t(i) * size], static_cast<const char*>(param) + size_t(i) * size, size) != 0)
      master[i] = float(element(param, dtype, i));
}

// `kernel` is given the real addresses. `states`: null where an optimizer has none.
void update(const char* name, const StepBuffers& buffers, DType grad_dtype, const std::vector<void*>& states,
            const std::function<void(const StepBuffers&, const std::vector<void*>&)>& kernel) {
  if (buffers.numel == 0) return;
  const int64_t numel = buffers.numel;
  std::vector<Access> accesses{write(buffers.master, numel * 4), read(buffers.grad, numel * element_size(grad_dtype))};
  if (buffers.param) accesses.push_back(write(buffers.param, numel * element_size(buffers.param_dtype)));
  StepBuffers there = buffers;
  there.master = real(buffers.master);
  there.grad = real(buffers.grad);
  there.param = buffers.param ? real(buffers.param) : nullptr;
  std::vector<void*> real_states;
  for (void* const state : states) {
    if (state) accesses.push_back(write(state, numel * 4));
    real_states.push_back(state ? real(state) : nullptr);
  }
  launch(buffers.master, name, accesses, [there, real_states, kernel] {
    if (there.takes_written) take(there.master, there.param, there.param_dtype, there.numel);
    kernel(there, real_states);
  });
}

template <int kGrad, int kParam>
void adam(const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const kernels::AdamConstants& c) {
  update("adam", buffers, kTypes[kGrad], {exp_avg, exp_avg_sq}, [c](const StepBuffers& b, const auto& states) {
    kernels::scalar_table()->adam[0][kGrad][kParam](b, states[0], states[1], c);
  });
}
template <int kGrad, int kParam>
void sgd(const StepBuffers& buffers, void* momentum, const kernels::SgdConstants& c) {
  update("sgd", buffers, kTypes[kGrad], {momentum}, [c](const StepBuffers& b, const auto& states) {
    kernels::scalar_table()->sgd[0][kGrad][kParam](b, states[0], c);
  });
}
template <int kGrad, int kParam>
void lion(const StepBuffers& buffers, void* exp_avg, const kernels::LionConstants& c) {
  update("lion", buffers, kTypes[kGrad], {exp_avg}, [c](const StepBuffers& b, const auto& states) {
    kernels::scalar_table()->lion[0][kGrad][kParam](b, states[0], c);
  });
}
template <int kGrad, int kParam>
void adagrad(const StepBuffers& buffers, void* sum, const kernels::AdagradConstants& c) {
  update("adagrad", buffers, kTypes[kGrad], {sum}, [c](const StepBuffers& b, const auto& states) {
    kernels::scalar_table()->adagrad[0][kGrad][kParam](b, states[0], c);
  });
}

void pack_all(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale) {
  std::vector<Access> accesses;
  std::vector<PackItem> there;
  const void* somewhere = nullptr;  // on the device: what has no elements may lie nowhere
  for (const PackItem& item : items) {
    if (item.numel == 0) continue;
    somewhere = item.dst;
    accesses.push_back(read(item.src, item.numel * element_size(src_dtype)));
    accesses.push_back(write(item.dst, item.numel * element_size(dst_dtype)));
    there.push_back({real(item.src), real(item.dst), item.numel});
  }
  if (there.empty()) return;
  launch(somewhere, "pack_all", accesses, [there, src_dtype, dst_dtype, scale] {
    for (const PackItem& item : there)
      kernels::pack(*kernels::scalar_table(), item.src, src_dtype, item.dst, dst_dtype, scale, item.numel);
  });
}

// By halves in fp64, as device/device_squares.h says.
double sum_of_block(const void* data, DType dtype, int64_t begin, int64_t end) {
  std::vector<double> squares(size_t(kBlockNumel), 0.0);
  for (int64_t i = begin; i < end; ++i) {
    const double value = element(data, dtype, i);
    squares[size_t(i - begin)] = value * value;
  }
  for (size_t half = size_t(kBlockNumel) / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) squares[i] += squares[i + half];
  return squares[0];
}

void add_squares(const void* data, DType dtype, int64_t numel, int64_t* limbs) {
  if (numel == 0) return;
  launch(data, "add_squares", {read(data, numel * element_size(dtype)), write(limbs, ExactSum::kNumLimbs * 8)},
         [data = real(data), dtype, numel, limbs = real(limbs)] {
           ExactSum sum;
           for (int64_t begin = 0; begin < numel; begin += kBlockNumel)
             sum.add(sum_of_block(data, dtype, begin, std::min(numel, begin + kBlockNumel)));
           for (size_t i = 0; i < ExactSum::kNumLimbs; ++i) limbs[i] += sum.limbs()[i];
         });
}

void take_written(float* master, const void* param, DType dtype, int64_t numel) {
  if (numel == 0) return;
  launch(master, "take_written", {write(master, numel * 4), read(param, numel * 2)},
         [master = real(master), param = real(param), dtype, numel] { take(master, param, dtype, numel); });
}

// Word by word, as device/device_kernels.h says.
void add_checksum(const void* data, int64_t bytes, int64_t* sum) {
  if (bytes == 0) return;
  launch(data, "add_checksum", {read(data, bytes), write(sum, 8)}, [data = real(data), bytes, sum = real(sum)] {
    uint64_t total = 0;
    for (int64_t begin = 0; begin < bytes; begin += 8) {
      uint64_t word = 0;
      std::memcpy(&word, static_cast<const char*>(data) + begin, size_t(std::min<int64_t>(8, bytes - begin)));
      word += uint64_t(begin / 8 + 1) * 0x9e3779b97f4a7c15U;
      word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9U;
      word = (word ^ (word >> 27)) * 0x94d049bb133111ebU;
      total += word ^ (word >> 31);
    }
    *sum += int64_t(total);
  });
}

void decode(kernels::CodedValues from, int64_t numel, float* to) {
  if (numel == 0) return;
  launch(to, "decode",
         {read(from.codes, numel), read(from.scales, ceil_div(numel, kScaledNumel) * 4), write(to, numel * 4)},
         [codes = real(static_cast<const uint8_t*>(from.codes)), scales = real(from.scales), is_signed = from.is_signed,
          numel, to = real(to)] {
           const kernels::DecodeTable& table = is_signed ? kernels::kSignedDecode : kernels::kUnsignedDecode;
           for (int64_t i = 0; i < numel; ++i)
             to[i] = kernels::decode_element(table, codes[i], is_signed) * scales[i / kScaledNumel];
         });
}

void encode(const float* values, int64_t numel, kernels::CodedValues to) {
  if (numel == 0) return;
  launch(to.codes, "encode",
         {read(values, numel * 4), write(to.codes, numel), write(to.scales, ceil_div(numel, kScaledNumel) * 4)},
         [values = real(values), numel, codes = real(static_cast<uint8_t*>(to.codes)), scales = real(to.scales),
          is_signed = to.is_signed] {
           const kernels::EncodeTable& table = is_signed ? kernels::kSignedEncode : kernels::kUnsignedEncode;
           for (int64_t begin = 0; begin < numel; begin += kScaledNumel) {
             const int64_t end = std::min(numel, begin + kScaledNumel);
             float most = 0;
             for (int64_t i = begin; i < end; ++i) most = std::max(most, std::fabs(values[i]));
             const float scale = scales[begin / kScaledNumel] = kernels::scale_of(most);
             for (int64_t i = begin; i < end; ++i)
               codes[i] = kernels::encode_element(table, values[i], kernels::factors_of(scale), is_signed);
           }
         });
}

template <int kSrc>
void fill_row(kernels::KernelTable& table) {
  table.pack[kSrc][0] = pack<kSrc, 0, false>;
  table.pack[kSrc][1] = pack<kSrc, 1, false>;
  table.pack[kSrc][2] = pack<kSrc, 2, false>;
  table.pack_add[kSrc][0] = pack<kSrc, 0, true>;
  table.pack_add[kSrc][1] = pack<kSrc, 1, true>;
  table.pack_add[kSrc][2] = pack<kSrc, 2, true>;
  table.sum_in_order[kSrc][0] = sum_in_order<kSrc, 0>;
  table.sum_in_order[kSrc][1] = sum_in_order<kSrc, 1>;
  table.sum_in_order[kSrc][2] = sum_in_order<kSrc, 2>;
  [&]<int... kParam>(std::integer_sequence<int, kParam...>) {
    ((table.adam[0][kSrc][kParam] = adam<kSrc, kParam>, table.sgd[0][kSrc][kParam] = sgd<kSrc, kParam>,
      table.lion[0][kSrc][kParam] = lion<kSrc, kParam>, table.adagrad[0][kSrc][kParam] = adagrad<kSrc, kParam>),
     ...);
  }
  (std::make_integer_sequence<int, kernels::kDtypes + 1>());
}

const DeviceKernels& own_kernels() {
  static const kernels::KernelTable table = [] {
    kernels::KernelTable made{};
    made.name = "simulated";
    fill_row<0>(made);
    fill_row<1>(made);
    fill_row<2>(made);
    return made;
  }();
  static const DeviceKernels all{&table, pack_all, add_squares, take_written, add_checksum, decode, encode};
  return all;
}

}  // namespace

void use_own_kernels(bool use) {
  set_device_kernels(c10::DeviceType::PrivateUse1, use ? &own_kernels() : nullptr);
}

}  // namespace zeroshard::accelerator
