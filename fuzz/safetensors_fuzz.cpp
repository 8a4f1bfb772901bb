// Any bytes as a safetensors file: refused with ValueError, or a sound header that survives being written again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "file/safetensors.h"
#include "zeroshard/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void read(std::string_view file) {
  const auto size = int64_t(file.size());
  const int64_t header_bytes = zeroshard::safetensors_header_bytes(file.substr(0, 8), size, "input");
  const auto header = zeroshard::parse_safetensors_header(file.substr(8, size_t(header_bytes)), size, "input");
  int64_t next = 0;
  for (const zeroshard::SafetensorsEntry& entry : header.entries) {
    require(entry.begin == next && entry.end >= entry.begin);
    next = entry.end;
  }
  require(header.data_begin == 8 + header_bytes && header.data_begin + next == size);
  const std::string again = zeroshard::make_safetensors_header(header.entries, header.metadata);
  const auto reread =
      zeroshard::parse_safetensors_header(std::string_view(again).substr(8), int64_t(again.size()) + next, "its copy");
  require(reread.entries == header.entries && reread.metadata == header.metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const zeroshard::ValueError&) {
  }
  return 0;
}
