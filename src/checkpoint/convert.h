#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Returns whether elements of the safetensors dtype `from` can be converted to `to`. They can if the dtypes are equal,
// or if both are among F64, F32, F16 and BF16. U8, I16, I32 and I64 can also be converted to any dtype of the same
// width that is not among these four. The bits then stay as they are. Checkpoints before version 0.2 need this, because
// they named all other dtypes by their width.
bool convertible(std::string_view from, std::string_view to);

// Returns whether all `values` are finite. Throws ValueError unless `dtype` is F64, F32, F16 or BF16.
bool all_finite(const void* values, std::string_view dtype, int64_t numel);

// Converts `numel` values, rounding to nearest even. F64 values are first rounded to F32. `from` and `to` must not
// overlap. Throws ValueError if the dtypes are not convertible.
void convert(const void* from, std::string_view from_dtype, void* to, std::string_view to_dtype, int64_t numel);

}  // namespace zeroshard
