// Any bytes as a manifest whose checksum is right (it is put before them): refused with ValueError, or one that
// survives being written again.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"
#include "file/hash.h"
#include "zeroshard/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::array<char, 64> first_line{};
  const auto hash = static_cast<unsigned long long>(zeroshard::hash_bytes(data, int64_t(size)));
  std::snprintf(first_line.data(), first_line.size(), "{\"xxh3_64\": \"%016llx\",\n", hash);
  const std::string text = first_line.data() + std::string(reinterpret_cast<const char*>(data), size);
  try {
    const std::string again = to_text(zeroshard::parse_manifest(text, "input"));
    try {
      if (to_text(zeroshard::parse_manifest(again, "its copy")) != again) std::abort();
    } catch (const zeroshard::ValueError&) {
      std::abort();  // it was accepted before
    }
  } catch (const zeroshard::ValueError&) {
  }
  return 0;
}
