#include "adam_passes/passes.h"

#include <algorithm>
#include <cmath>

#include "adam_passes/probe.h"
#include "kernels/kernels.h"
#include "layout/shard_layout.h"

#ifdef __x86_64__
#define ZS_BENCH_CLONES __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define ZS_BENCH_CLONES
#endif

namespace zeroshard::bench {
namespace {

ZS_BENCH_CLONES uint32_t or_of_words(const uint32_t* words, int64_t count) {
  uint32_t all = 0;
  for (int64_t i = 0; i < count; ++i) all |= words[i];
  return all;
}

ZS_BENCH_CLONES void add_streams(float* __restrict weights, const float* __restrict grad, float* __restrict exp_avg,
                                 float* __restrict exp_avg_sq, uint16_t* __restrict param, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = grad[i];
    exp_avg[i] += value;
    exp_avg_sq[i] += value;
    weights[i] += value;
    param[i] = static_cast<uint16_t>(static_cast<int32_t>(value));
  }
}

}  // namespace

Crew::Crew(int threads) : threads_(threads), gate_(threads) {
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
}

Crew::~Crew() {
  work_ = nullptr;
  gate_.arrive_and_wait();
  for (auto& worker : workers_) worker.join();
}

void Crew::serve(int thread) {
  while (true) {
    gate_.arrive_and_wait();
    if (work_ == nullptr) return;
    part(thread);
    gate_.arrive_and_wait();
  }
}

void Crew::part(int thread) const {
  const int64_t blocks = (numel_ + 1023) / 1024;
  const auto cut = [&](int64_t index) { return std::min(numel_, blocks * index / threads_ * 1024); };
  (*work_)(thread, cut(thread), cut(thread + 1));
}

void Crew::run(int64_t numel, const std::function<void(int, int64_t, int64_t)>& work) {
  numel_ = numel;
  work_ = &work;
  gate_.arrive_and_wait();
  part(0);
  gate_.arrive_and_wait();
}

double norm(Crew& crew, const Arrays& arrays) {
  std::vector<kernels::TwofoldSum> sums(static_cast<size_t>(crew.threads()));
  crew.run(arrays.numel, [&](int thread, int64_t begin, int64_t end) {
    sums[static_cast<size_t>(thread)] = kernels::sum_of_squares(arrays.grad + begin, DType::kFloat32, end - begin);
  });
  double total = 0, rest = 0;
  for (const kernels::TwofoldSum& sum : sums) {
    total += sum.sum;
    rest += sum.rest;
  }
  return std::sqrt(total + rest);
}

void adam_step(Crew& crew, const Arrays& arrays, float grad_scale, int64_t step) {
  kernels::AdamArgs args;
  args.weight_decay = 0.01;
  args.step = step;
  crew.run(arrays.numel, [&](int, int64_t begin, int64_t end) {
    const kernels::StepBuffers buffers{
        arrays.weights + begin, arrays.grad + begin, DType::kFloat32, arrays.param + begin,
        DType::kBFloat16,       grad_scale,          end - begin};
    kernels::adam(buffers, arrays.exp_avg + begin, arrays.exp_avg_sq + begin, args);
  });
}

void narrow_adam_step(Crew& crew, const Arrays& arrays, uint16_t* exp_avg, uint16_t* exp_avg_sq, int64_t step) {
  kernels::AdamArgs args;
  args.weight_decay = 0.01;
  args.step = step;
  crew.run(arrays.numel, [&](int, int64_t begin, int64_t end) {
    kernels::StepBuffers buffers{arrays.weights + begin,
                                 arrays.grad + begin,
                                 DType::kFloat32,
                                 arrays.param + begin,
                                 DType::kBFloat16,
                                 1.0f,
                                 end - begin};
    buffers.moment_dtype = DType::kBFloat16;
    buffers.random = {kernels::random_key(1, step), begin};
    kernels::adam(buffers, exp_avg + begin, exp_avg_sq + begin, args);
  });
}

void coded_adam_step(Crew& crew, const Arrays& arrays, uint8_t* const codes[2], float* const scales[2], int64_t step) {
  kernels::AdamArgs args;
  args.weight_decay = 0.01;
  args.step = step;
  crew.run(arrays.numel, [&](int, int64_t begin, int64_t end) {
    kernels::StepBuffers buffers{arrays.weights + begin,
                                 arrays.grad + begin,
                                 DType::kFloat32,
                                 arrays.param + begin,
                                 DType::kBFloat16,
                                 1.0f,
                                 end - begin};
    buffers.moment_dtype = kCodes;
    for (size_t slot = 0; slot < 2; ++slot) buffers.scales[slot] = scales[slot] + begin / kScaledNumel;
    kernels::adam(buffers, codes[0] + begin, codes[1] + begin, args);
  });
}

double clip_and_step(Crew& crew, const Arrays& arrays, double max_norm, int64_t step) {
  const double total = norm(crew, arrays);
  adam_step(crew, arrays, static_cast<float>(std::min(1.0, max_norm / (total + 1e-6))), step);
  return total;
}

double norm_probe(Crew& crew, const Arrays& arrays) {
  std::vector<uint32_t> words(static_cast<size_t>(crew.threads()));
  crew.run(arrays.numel, [&](int thread, int64_t begin, int64_t end) {
    words[static_cast<size_t>(thread)] =
        or_of_words(reinterpret_cast<const uint32_t*>(arrays.grad + begin), end - begin);
  });
  uint32_t all = 0;
  for (const uint32_t word : words) all |= word;
  return all;
}

void step_probe(Crew& crew, const Arrays& arrays) {
  crew.run(arrays.numel, [&](int, int64_t begin, int64_t end) {
    add_streams(arrays.weights + begin, arrays.grad + begin, arrays.exp_avg + begin, arrays.exp_avg_sq + begin,
                arrays.param + begin, end - begin);
  });
}

void tuned_step_probe(Crew& crew, const Arrays& arrays) {
  crew.run(arrays.numel, [&](int, int64_t begin, int64_t end) {
    add_streams_tuned({arrays.weights + begin, arrays.grad + begin, arrays.exp_avg + begin, arrays.exp_avg_sq + begin,
                       arrays.param + begin, end - begin});
  });
}

}  // namespace zeroshard::bench
