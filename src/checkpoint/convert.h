#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Returns whether elements of the safetensors dtype `from` can be converted to `to`. They can if the dtypes are equal,
// or if both are among F64, F32, F16 and BF16. They also can be converted if `from` is U8, I16, I32 or I64, and `to` is
// a dtype of the same width other than F64, F32, F16 and BF16. The bits then stay as they are. Checkpoints before
// version 0.2 need this, because they named an integer dtype of the same width in place of every dtype other than F64,
// F32, F16 and BF16.
bool convertible(std::string_view from, std::string_view to);

// Returns whether all `values` are finite. Throws ValueError unless `dtype` is F64, F32, F16 or BF16.
bool all_finite(const void* values, std::string_view dtype, int64_t numel);

// Converts `numel` values. If the dtypes are equal, or are convertible only by their width, copies the bits. Otherwise
// rounds to nearest even. If one dtype is F64, rounds to F32 on the way. `from` and `to` must not overlap. Throws
// ValueError if the dtypes are not convertible.
void convert(const void* from, std::string_view from_dtype, void* to, std::string_view to_dtype, int64_t numel);

}  // namespace zeroshard
