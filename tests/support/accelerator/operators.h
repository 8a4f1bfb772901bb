#pragma once
#include <c10/core/Storage.h>

#include <cstddef>

namespace zeroshard::accelerator {

// Once.
void register_operators();

// The first bytes stay, in the order of the current stream.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace zeroshard::accelerator
