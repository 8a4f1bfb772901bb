#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace zeroshard {

// Returns the name that safetensors has for `type`: "F32", "BF16", ... Throws ValueError if safetensors has no such
// type.
std::string safetensors_dtype(c10::ScalarType type);

}  // namespace zeroshard
