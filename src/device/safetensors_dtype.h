#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace zeroshard {

// "F32", "BF16", ... Throws ValueError for a type that safetensors has no name for.
std::string safetensors_dtype(c10::ScalarType type);

}  // namespace zeroshard
