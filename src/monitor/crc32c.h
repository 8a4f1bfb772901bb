#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Returns the CRC-32C (Castagnoli) of `bytes`, as iSCSI, ext4 and TFRecord files use it.
uint32_t crc32c(std::string_view bytes);

}  // namespace zeroshard
