#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

enum class IdType : uint8_t { kUint16, kUint32, kInt32, kInt64 };

constexpr int bytes_of(IdType type) {
  return type == IdType::kUint16 ? 2 : type == IdType::kInt64 ? 8 : 4;
}

// The type of the ids in a file of another program, and where they are.
struct ForeignTokens {
  std::string format;
  IdType type = IdType::kUint16;
  int64_t begin = 0, tokens = 0;  // byte offset of the first id, maybe unaligned; number of ids
};

// Finds the ids in a file of another program. `file` is the contents of the file `path`. Recognises the format by the
// suffix ".u16" (plain uint16), or else by the first bytes. Throws a ValueError that names `path` and what is wrong.
ForeignTokens parse_foreign_tokens(std::string_view file, const std::string& path);

}  // namespace zeroshard
