// Times zeroshard's clip + AdamW + bf16 cast and the memory traffic it cannot avoid, interleaved, JSON to stdout.
//   bench_adam [numel = 16777216] [rounds = 9] [threads = 1]
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "adam_passes/passes.h"
#include "adam_passes/probe.h"
#include "kernels/kernels.h"
#include "timing.h"

namespace {

using zeroshard::bench::Arrays;
using zeroshard::bench::Crew;
using zeroshard::bench::median;
using zeroshard::bench::time_of;

struct Case {
  const char* name;
  int bytes;  // per element
  std::function<void(int64_t step)> run;
  std::vector<double> seconds;
};

void print(const std::vector<Case>& cases, int64_t numel, int64_t rounds, int threads) {
  std::cout << "{\"numel\": " << numel << ", \"rounds\": " << rounds << ", \"threads\": " << threads << ", \"isa\": \""
            << zeroshard::kernels::instruction_set() << "\", \"cases\": {";
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const double seconds = median(c.seconds), least = *std::min_element(c.seconds.begin(), c.seconds.end());
    const double count = static_cast<double>(numel);
    std::cout << (i == 0 ? "\n" : ",\n") << "  \"" << c.name
              << "\": {\"median_ns_per_param\": " << seconds / count * 1e9
              << ", \"min_ns_per_param\": " << least / count * 1e9
              << ", \"median_gb_per_s\": " << c.bytes * count / seconds * 1e-9 << "}";
  }
  std::cout << "\n}}\n";
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t numel = argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 24;
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 9;
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  if (numel <= 0 || rounds <= 0 || threads <= 0) {
    std::cerr << "usage: bench_adam [numel] [rounds] [threads], all positive\n";
    return 2;
  }
  const auto count = static_cast<size_t>(numel);
  std::vector<float> weights(count, 1), grad(count, 0.5f), exp_avg(count, 0), exp_avg_sq(count, 0);
  std::vector<uint16_t> narrow_avg(count, 0x3c24), narrow_avg_sq(count, 0x3c24);  // 0.01
  std::vector<uint16_t> param_space(count + 32);
  uint16_t* param = param_space.data();
  while (reinterpret_cast<uintptr_t>(param) % 64 != 0) ++param;
  const Arrays arrays{weights.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), param, numel};
  Crew crew(threads);
  double sink = 0;
  std::vector<Case> cases{
      {"step", 30, [&](int64_t step) { adam_step(crew, arrays, 1.0f, step); }, {}},
      {"narrow_step",
       22,
       [&](int64_t step) { narrow_adam_step(crew, arrays, narrow_avg.data(), narrow_avg_sq.data(), step); },
       {}},
      {"step_probe", 30, [&](int64_t) { step_probe(crew, arrays); }, {}},
      {"norm", 4, [&](int64_t) { sink += norm(crew, arrays); }, {}},
      {"norm_probe", 4, [&](int64_t) { sink += norm_probe(crew, arrays); }, {}},
      {"clip_and_step", 34, [&](int64_t step) { sink += clip_and_step(crew, arrays, 1.0, step); }, {}},
  };
  if (zeroshard::bench::has_tuned_probe()) {
    cases.push_back({"tuned_step_probe", 30, [&](int64_t) { tuned_step_probe(crew, arrays); }, {}});
  }
  for (int64_t round = 0; round <= rounds; ++round) {  // the first warms up
    for (Case& c : cases) {
      const double seconds = time_of([&] { c.run(round + 1); });
      if (round > 0) c.seconds.push_back(seconds);
      // The probe adds the gradient to the moments: put them back into the range of real ones.
      std::fill(exp_avg.begin(), exp_avg.end(), 0.01f);
      std::fill(exp_avg_sq.begin(), exp_avg_sq.end(), 0.01f);
    }
  }
  print(cases, numel, rounds, threads);
  return sink > 0 ? 0 : 1;
}
