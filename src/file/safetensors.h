#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The header of a safetensors file. The file begins with the length of the header (8 bytes, little-endian), followed by
// JSON of that length and the bytes of the tensors. This code does not use torch. It does not trust files, so it checks
// every number in a file before it allocates memory according to the number.
namespace zeroshard {

class FileReader;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the format spells it: "F32", "BF16", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // byte positions, counted from SafetensorsHeader::data_begin

  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by position in the file
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // byte position, counted from the start of the file
};

// Limits of the reader. The format itself does not limit some of these counts. The limits keep the reader's memory
// within a few times the size of the header.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxSafetensorsEntries = 1'000'000;  // the most tensors, and the most entries of metadata
inline constexpr int kMaxSafetensorsDepth = 16;
inline constexpr int kMaxSafetensorsDims = 1024;

// Returns how many bits one element has. Returns 0 for a dtype that the format does not have.
int safetensors_dtype_bits(std::string_view dtype);

// Reads the length of the JSON from the first 8 bytes of a file. Throws ValueError that names `source` if the file has
// fewer than 8 bytes, or if the length exceeds kMaxSafetensorsHeaderBytes or the rest of the file.
int64_t safetensors_header_bytes(std::string_view first_bytes, int64_t file_size, const std::string& source);

// Checks and parses the JSON of a file of `file_size` bytes. Ordered by offset, the tensors must fill the rest of the
// file without gap or overlap, and each must have exactly the bytes that its dtype and shape need. Otherwise throws
// ValueError that names `source`, the reason and, if there is one, the tensor. Also throws it for text that is not JSON
// in UTF-8, for JSON of another form than the format's, for duplicate keys, and for values above the limits.
SafetensorsHeader parse_safetensors_header(std::string_view header_json, int64_t file_size, const std::string& source);

// Reads and parses the header of a file. Throws the ValueError of parse_safetensors_header(), or IoError.
SafetensorsHeader read_safetensors_header(const FileReader& file);

// Returns the part of a file that comes before the bytes of the tensors. Padding makes the bytes of the tensors begin
// at a multiple of `alignment` (a power of two, at least 8). Throws ValueError for a wrong alignment, and for input
// that parse_safetensors_header() would refuse.
std::string make_safetensors_header(std::span<const SafetensorsEntry> entries,
                                    const std::map<std::string, std::string>& metadata, int64_t alignment = 64);

}  // namespace zeroshard
