#ifdef __aarch64__
#include "kernels/optim_impl.h"
#include "kernels/simd_neon.h"

namespace zeroshard::kernels {

const KernelTable* neon_table() {
  static constexpr KernelTable kTable = make_table<Neon>("neon");
  return &kTable;
}

}  // namespace zeroshard::kernels

#else
#include "kernels/table.h"

namespace zeroshard::kernels {

const KernelTable* neon_table() {
  return nullptr;
}

}  // namespace zeroshard::kernels

#endif
