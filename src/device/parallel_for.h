// A loop over LibTorch's threads. at::parallel_for is a template that the caller's compiler translates: without
// -fopenmp it runs on one thread, and compilers other than GCC give it a second OpenMP runtime beside that of LibTorch.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace zeroshard {

// Calls body(first, last) for ranges that together are [begin, end), each on one of at::get_num_threads() threads.
// Ranges have at least half of `grain` (> 0) elements, apart from the last one. Within another parallel loop, or for at
// most `grain` elements, calls body(begin, end) on the calling thread. Rethrows what a call throws (of several, one),
// after all calls have ended. The ranges are those of at::parallel_for.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

}  // namespace zeroshard
