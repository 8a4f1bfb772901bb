#pragma once
#include <cstdint>

#include "kernels/table.h"

// What the tests of moments in bf16 and in 8 bits share.
namespace zeroshard::kernels::test {

// Not a constant for the compiler: GCC 12 would warn of writes past the end, in branches for another dtype.
inline int64_t numel_of(int64_t value) {
  const volatile int64_t kept = value;
  return kept;
}

inline void apply(const KernelTable& table, const StepBuffers& b, void* first, void* second, const AdamArgs& args) {
  adam(table, b, first, second, args);
}
inline void apply(const KernelTable& table, const StepBuffers& b, void* first, void*, const SgdArgs& args) {
  sgd(table, b, first, args);
}
inline void apply(const KernelTable& table, const StepBuffers& b, void* first, void*, const LionArgs& args) {
  lion(table, b, first, args);
}
inline void apply(const KernelTable& table, const StepBuffers& b, void* first, void*, const AdagradArgs& args) {
  adagrad(table, b, first, args);
}

}  // namespace zeroshard::kernels::test
