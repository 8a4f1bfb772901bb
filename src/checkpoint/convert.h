#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Returns whether elements of one safetensors dtype can be converted to the other. Conversion works between equal
// dtypes and between floating-point dtypes. It also works between U8, I16, I32 or I64 and another dtype of the same
// width that is not floating-point.
bool convertible(std::string_view from, std::string_view to);

// Returns whether all values of a floating-point dtype are finite.
bool all_finite(const void* values, std::string_view dtype, int64_t numel);

// Converts and rounds to nearest even. The memory must not overlap. Throws ValueError if the dtypes are not
// convertible.
void convert(const void* from, std::string_view from_dtype, void* to, std::string_view to_dtype, int64_t numel);

}  // namespace zeroshard
