#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/align.h"

// Defines the layout of a token file, which docs/token-files.md describes.
namespace zeroshard {

static_assert(std::endian::native == std::endian::little, "token files are read and written as they lie in memory");

inline constexpr std::string_view kTokenMagic = "zstokens";
inline constexpr uint32_t kTokenVersion = 1;
inline constexpr int64_t kTokenHeadBytes = 64;   // magic, version and zeros; the ids come next
inline constexpr int64_t kTokenAlignment = 64;   // alignment of each section
inline constexpr int64_t kTokenFootBytes = 128;  // size of the footer, the last bytes of the file
inline constexpr int64_t kPieceBytes = 1 << 20;  // bytes that one checksum covers; the last one may cover fewer
inline constexpr size_t kTokenizerDigestBytes = 16;

// The contents of the footer. `max_id` is the largest id, and `max_position` the position of the first token with it.
// `learned` is the number of tokens that are targets.
struct TokenFoot {
  int64_t tokens = 0, documents = 0, vocab_size = 0, max_id = 0, max_position = 0, learned = 0;
  int32_t id_bytes = 0;
  bool masked = false;
  std::string tokenizer;    // empty, or a digest of kTokenizerDigestBytes digits
  uint64_t table_hash = 0;  // hash of the table of checksums
};

// The layout of a file, as it follows from the counts in the footer. `mask`, `ends`, `table` and `foot` are the offsets
// of the mask, of the ends of the documents, of the table of checksums and of the footer. The body is everything before
// `body_end`. It has `pieces` pieces, each with a checksum. `file_bytes` is the size of the file.
struct TokenSections {
  int64_t mask = 0, ends = 0, body_end = 0, table = 0, pieces = 0, foot = 0, file_bytes = 0;
};

// The caller must make sure that no offset overflows. No offset overflows for a footer from parse_token_foot().
inline TokenSections token_sections(const TokenFoot& foot) {
  TokenSections at;
  at.mask = align_up(kTokenHeadBytes + foot.tokens * foot.id_bytes, kTokenAlignment);
  at.ends = at.mask + (foot.masked ? align_up(ceil_div(foot.tokens, 8), kTokenAlignment) : 0);
  at.body_end = align_up(at.ends + foot.documents * 8, kTokenAlignment);
  at.pieces = ceil_div(at.body_end, kPieceBytes);
  at.table = at.body_end;
  at.foot = align_up(at.table + at.pieces * 8, kTokenAlignment);
  at.file_bytes = at.foot + kTokenFootBytes;
  return at;
}

std::array<std::byte, kTokenHeadBytes> make_token_head();
std::array<std::byte, kTokenFootBytes> make_token_foot(const TokenFoot& foot);

// Parses the footer of a token file. `file` is the contents of the whole file. Also checks the magic and the version at
// the beginning of the file, the size of the file, and the checksum of the table of checksums. Does not check the
// sections before that table. Throws a ValueError that names `source` and what is wrong.
TokenFoot parse_token_foot(std::string_view file, const std::string& source);

template <typename Number>
Number load(const void* data) {
  Number number;
  std::memcpy(&number, data, sizeof(number));
  return number;
}

}  // namespace zeroshard
