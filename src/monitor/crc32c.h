#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Returns the CRC-32C (Castagnoli), which iSCSI, ext4 and TFRecord files use.
uint32_t crc32c(std::string_view bytes);

}  // namespace zeroshard
