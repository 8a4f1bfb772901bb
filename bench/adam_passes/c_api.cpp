#include "adam_passes/passes.h"
#include "adam_passes/probe.h"
#include "kernels/kernels.h"

// The passes for ctypes: bench/adam.py loads them beside torch and DeepSpeed, in one process over the same arrays.
using zeroshard::bench::Arrays;
using zeroshard::bench::Crew;

extern "C" {

const char* zs_bench_isa() {
  return zeroshard::kernels::instruction_set();
}
void* zs_bench_crew(int threads) {
  return new Crew(threads);
}
void zs_bench_dismiss(void* crew) {
  delete static_cast<Crew*>(crew);
}
double zs_bench_norm(void* crew, const Arrays* arrays) {
  return norm(*static_cast<Crew*>(crew), *arrays);
}
double zs_bench_clip_and_step(void* crew, const Arrays* arrays, double max_norm, int64_t step) {
  return clip_and_step(*static_cast<Crew*>(crew), *arrays, max_norm, step);
}
void zs_bench_adam_step(void* crew, const Arrays* arrays, float grad_scale, int64_t step) {
  adam_step(*static_cast<Crew*>(crew), *arrays, grad_scale, step);
}
void zs_bench_coded_adam_step(void* crew, const Arrays* arrays, uint8_t* first, uint8_t* second, float* first_scales,
                              float* second_scales, int64_t step) {
  uint8_t* const codes[2] = {first, second};
  float* const scales[2] = {first_scales, second_scales};
  coded_adam_step(*static_cast<Crew*>(crew), *arrays, codes, scales, step);
}
double zs_bench_norm_probe(void* crew, const Arrays* arrays) {
  return norm_probe(*static_cast<Crew*>(crew), *arrays);
}
void zs_bench_step_probe(void* crew, const Arrays* arrays) {
  step_probe(*static_cast<Crew*>(crew), *arrays);
}
int zs_bench_has_tuned_probe() {
  return zeroshard::bench::has_tuned_probe() ? 1 : 0;
}
void zs_bench_tuned_step_probe(void* crew, const Arrays* arrays) {
  tuned_step_probe(*static_cast<Crew*>(crew), *arrays);
}
}
