#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Whether elements of one safetensors dtype can be had as the other: equal dtypes, floating-point ones, and U8, I16,
// I32 and I64 as another one of their width that is not floating-point.
bool convertible(std::string_view from, std::string_view to);

// Whether all values of a floating-point dtype are finite.
bool all_finite(const void* values, std::string_view dtype, int64_t numel);

// Rounds to nearest even. The memory does not overlap. Throws ValueError when the dtypes are not convertible.
void convert(const void* from, std::string_view from_dtype, void* to, std::string_view to_dtype, int64_t numel);

}  // namespace zeroshard
