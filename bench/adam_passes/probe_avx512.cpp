#include "adam_passes/probe.h"

#ifdef __x86_64__
#include "kernels/simd_avx512.h"

namespace zeroshard::bench {

bool has_tuned_probe() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

void add_streams_tuned(const Arrays& a) {
  using V = kernels::Avx512;
  constexpr int64_t kAhead = 256;
  for (int64_t i = 0; i + V::kWidth <= a.numel; i += V::kWidth) {
    for (const float* stream : {static_cast<const float*>(a.weights), a.grad, static_cast<const float*>(a.exp_avg),
                                static_cast<const float*>(a.exp_avg_sq)}) {
      __builtin_prefetch(stream + i + kAhead);
    }
    const V::F grad = V::load<float>(a.grad + i);
    for (float* stream : {a.weights, a.exp_avg, a.exp_avg_sq}) {
      V::store<float>(stream + i, V::add(V::load<float>(stream + i), grad));
    }
    _mm256_stream_si256(reinterpret_cast<__m256i*>(a.param + i), _mm512_cvtepi32_epi16(_mm512_castps_si512(grad)));
  }
  V::end_streams();
}

}  // namespace zeroshard::bench

#else

namespace zeroshard::bench {

bool has_tuned_probe() {
  return false;
}
void add_streams_tuned(const Arrays&) {}

}  // namespace zeroshard::bench
#endif
