#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// CRC-32C (Castagnoli), as iSCSI, ext4 and TFRecord files have it.
uint32_t crc32c(std::string_view bytes);

}  // namespace zeroshard
