#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace zeroshard {

// Returns "F32", "BF16", ... Throws ValueError for a type for which safetensors has no name.
std::string safetensors_dtype(c10::ScalarType type);

}  // namespace zeroshard
