#include "device/parallel_for.h"

#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "base/align.h"

#if !AT_PARALLEL_OPENMP
#error "this LibTorch has threads of its own in place of OpenMP's: zeroshard needs one that was built with OpenMP"
#endif

// Of libgomp, the OpenMP runtime that LibTorch links: what GCC compiles `#pragma omp parallel` to.
extern "C" {
void GOMP_parallel(void (*run)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_num_threads();
int omp_get_thread_num();
}

namespace zeroshard {
namespace {

struct Loop {
  int64_t begin, end, grain;
  c10::function_ref<void(int64_t, int64_t)> body;
  std::mutex mutex = {};
  std::exception_ptr error = {};
};

void run_range(const Loop& loop, int thread, int64_t begin, int64_t end) {
  const at::internal::ThreadIdGuard id(thread);
  const c10::ParallelGuard parallel(true);
  loop.body(begin, end);
}

// Runs on each thread of the team.
void run_part(void* data) {
  Loop& loop = *static_cast<Loop*>(data);
  const int64_t numel = loop.end - loop.begin, thread = omp_get_thread_num();
  const int64_t size = ceil_div(numel, std::min<int64_t>(omp_get_num_threads(), ceil_div(numel, loop.grain)));
  const int64_t begin = loop.begin + thread * size;
  if (begin >= loop.end) return;
  try {
    run_range(loop, static_cast<int>(thread), begin, std::min(begin + size, loop.end));
  } catch (...) {
    const std::lock_guard lock(loop.mutex);
    loop.error = std::current_exception();
  }
}

}  // namespace

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  if (begin >= end) return;
  at::internal::lazy_init_num_threads();
  Loop loop{begin, end, grain, body};
  if (end - begin <= grain || at::in_parallel_region() || at::get_num_threads() <= 1)
    return run_range(loop, 0, begin, end);
  // The size of the team is the runtime's, which at::set_num_threads() sets, because a team of another size would be a
  // new one.
  GOMP_parallel(run_part, &loop, 0, 0);
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace zeroshard
