#ifdef __x86_64__
#include "kernels/optim_impl.h"
#include "kernels/simd_avx512.h"

namespace zeroshard::kernels {

const KernelTable* avx512_table() {
  static constexpr KernelTable kTable = make_table<Avx512>("avx512");
  return &kTable;
}

}  // namespace zeroshard::kernels

#else
#include "kernels/table.h"

namespace zeroshard::kernels {

const KernelTable* avx512_table() {
  return nullptr;
}

}  // namespace zeroshard::kernels

#endif
