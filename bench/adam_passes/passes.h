#pragma once
#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

// What bench/adam.cpp and bench/adam.py time: zeroshard's clip + AdamW + cast, and the memory traffic it cannot avoid.
namespace zeroshard::bench {

// Flat arrays of one model: fp32 weights, gradient and moments, and the bf16 weights that a step writes.
struct Arrays {
  float* weights;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  uint16_t* param;
  int64_t numel;
};

// Threads that live as long as the object; the caller is thread 0.
class Crew {
 public:
  explicit Crew(int threads);
  ~Crew();
  // Calls work(begin, end) on every thread with its part of [0, numel), cut at multiples of 1024.
  void run(int64_t numel, const std::function<void(int thread, int64_t begin, int64_t end)>& work);
  int threads() const { return threads_; }

 private:
  void serve(int thread);
  void part(int thread) const;

  const int threads_;
  std::barrier<> gate_;
  int64_t numel_ = 0;
  const std::function<void(int, int64_t, int64_t)>* work_ = nullptr;  // null: end
  std::vector<std::thread> workers_;
};

// Each returns something computed, so that no pass can be left out. Bytes an element must move are stated.
double norm(Crew& crew, const Arrays& arrays);                                     // ours: read 4
void adam_step(Crew& crew, const Arrays& arrays, float grad_scale, int64_t step);  // ours: read 16, write 14
// The same with moments in bf16: read 12, write 10.
void narrow_adam_step(Crew& crew, const Arrays& arrays, uint16_t* exp_avg, uint16_t* exp_avg_sq, int64_t step);
// With moments in 8-bit codes, and two arrays with a scale for each 256 of them: read 10.03, write 8.03.
void coded_adam_step(Crew& crew, const Arrays& arrays, uint8_t* const codes[2], float* const scales[2], int64_t step);
double clip_and_step(Crew& crew, const Arrays& arrays, double max_norm, int64_t step);
double norm_probe(Crew& crew, const Arrays& arrays);  // read 4
void step_probe(Crew& crew, const Arrays& arrays);    // read 16, write 14: one addition per stream

// The same with prefetches and streaming stores; only where has_tuned_probe() (probe.h).
void tuned_step_probe(Crew& crew, const Arrays& arrays);

}  // namespace zeroshard::bench
