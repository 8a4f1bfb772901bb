#include "kernels/rows.h"

#include "base/check.h"
#include "kernels/table.h"

namespace zeroshard::kernels {

void rms_norm(const RmsNorm& norm, const float* x, int64_t rows, float* y, float* inverse_rms) {
  ZS_CHECK(norm.features > 0 && rows >= 0, "rms_norm of ", rows, " row(s) of ", norm.features, " features");
  active_table().rms_norm(norm, x, rows, y, inverse_rms);
}

void rms_norm_backward(const RmsNorm& norm, const float* dy, const float* x, const float* inverse_rms, int64_t rows,
                       float* dx, float* dweight) {
  ZS_CHECK(norm.features > 0 && rows >= 0, "rms_norm_backward of ", rows, " row(s) of ", norm.features, " features");
  active_table().rms_norm_backward(norm, dy, x, inverse_rms, rows, dx, dweight);
}

void rotate(const Rotation& rotation, const float* x, int64_t x_stride, int64_t heads, float* y, int64_t y_stride) {
  ZS_CHECK(rotation.features > 0 && rotation.features % 2 == 0 && heads >= 0, "rotate of ", heads, " row(s) of ",
           rotation.features, " features, which must be even");
  active_table().rotate(rotation, x, x_stride, heads, y, y_stride);
}

}  // namespace zeroshard::kernels
