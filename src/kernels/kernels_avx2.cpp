#ifdef __x86_64__
#include "kernels/optim_impl.h"
#include "kernels/simd_avx2.h"

namespace zeroshard::kernels {

const KernelTable* avx2_table() {
  static constexpr KernelTable kTable = make_table<Avx2>("avx2");
  return &kTable;
}

}  // namespace zeroshard::kernels

#else
#include "kernels/table.h"

namespace zeroshard::kernels {

const KernelTable* avx2_table() {
  return nullptr;
}

}  // namespace zeroshard::kernels

#endif
