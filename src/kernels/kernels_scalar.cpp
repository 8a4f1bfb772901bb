#include "kernels/optim_impl.h"
#include "kernels/simd_scalar.h"

namespace zeroshard::kernels {

const KernelTable* scalar_table() {
  static constexpr KernelTable kTable = make_table<Scalar>("scalar");
  return &kTable;
}

}  // namespace zeroshard::kernels
