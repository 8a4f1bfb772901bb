#include "data/token_format.h"

#include "base/check.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

// The offsets of fields in the footer. The bytes from kReserved to kTableHash are zero.
enum Offset : size_t {
  kTokens = 0,
  kDocuments = 8,
  kVocabSize = 16,
  kMaxId = 24,
  kMaxPosition = 32,
  kLearned = 40,
  kIdBytes = 48,
  kFlags = 52,
  kTokenizer = 56,
  kReserved = 72,
  kTableHash = 104,
  kFootHash = 112,
  kMagicAgain = 120,
};
constexpr uint32_t kMasked = 1;  // bit of the flags

template <typename Number>
void store(std::byte* data, Number number) {
  std::memcpy(data, &number, sizeof(number));
}

// Reads the fields of a footer. Errors name the file and the field.
class FootReader {
 public:
  FootReader(std::string_view file, const std::string& source)
      : foot_(file.substr(file.size() - kTokenFootBytes)), file_bytes_(int64_t(file.size())), source_(source) {}

  uint64_t number(size_t offset) const { return load<uint64_t>(foot_.data() + offset); }
  uint32_t small(size_t offset) const { return load<uint32_t>(foot_.data() + offset); }
  std::string_view bytes(size_t offset, size_t count) const { return foot_.substr(offset, count); }

  // Returns the number at `offset`. Throws ValueError if it is not in [low, high].
  int64_t count(size_t offset, const char* field, int64_t low, int64_t high) const {
    const uint64_t value = number(offset);
    ZS_CHECK(value >= uint64_t(low) && value <= uint64_t(high), source_, ": the foot's ", field, " is ", value,
             ", must be between ", low, " and ", high, " in a file of ", file_bytes_, " bytes: ", kAdvice);
    return int64_t(value);
  }

  static constexpr const char* kAdvice = "it is damaged, or no file of `zeroshard tokenize`; make it again";

 private:
  std::string_view foot_;
  int64_t file_bytes_;
  const std::string& source_;
};

void check_head(std::string_view file, const std::string& source) {
  ZS_CHECK(file.starts_with(kTokenMagic), source, " is no file of tokens: it does not begin with '", kTokenMagic, "'");
  ZS_CHECK(int64_t(file.size()) >= kTokenHeadBytes + kTokenFootBytes, source, " has ", file.size(),
           " bytes, a file of tokens has more than ", kTokenHeadBytes + kTokenFootBytes, ": it is cut off");
  const uint32_t version = load<uint32_t>(file.data() + kTokenMagic.size());
  ZS_CHECK(version == kTokenVersion, source, ": the version of its format is ", version, ", this zeroshard knows ",
           kTokenVersion);
}

}  // namespace

std::array<std::byte, kTokenHeadBytes> make_token_head() {
  std::array<std::byte, kTokenHeadBytes> head{};
  std::memcpy(head.data(), kTokenMagic.data(), kTokenMagic.size());
  store(head.data() + kTokenMagic.size(), kTokenVersion);
  return head;
}

std::array<std::byte, kTokenFootBytes> make_token_foot(const TokenFoot& foot) {
  std::array<std::byte, kTokenFootBytes> bytes{};
  store(bytes.data() + kTokens, foot.tokens);
  store(bytes.data() + kDocuments, foot.documents);
  store(bytes.data() + kVocabSize, foot.vocab_size);
  store(bytes.data() + kMaxId, foot.max_id);
  store(bytes.data() + kMaxPosition, foot.max_position);
  store(bytes.data() + kLearned, foot.learned);
  store(bytes.data() + kIdBytes, foot.id_bytes);
  store(bytes.data() + kFlags, foot.masked ? kMasked : uint32_t{0});
  ZS_ASSERT(foot.tokenizer.empty() || foot.tokenizer.size() == kTokenizerDigestBytes);
  std::memcpy(bytes.data() + kTokenizer, foot.tokenizer.data(), foot.tokenizer.size());
  store(bytes.data() + kTableHash, foot.table_hash);
  store(bytes.data() + kFootHash, hash_bytes(bytes.data(), kFootHash));
  std::memcpy(bytes.data() + kMagicAgain, kTokenMagic.data(), kTokenMagic.size());
  return bytes;
}

TokenFoot parse_token_foot(std::string_view file, const std::string& source) {
  check_head(file, source);
  const auto size = int64_t(file.size());
  const FootReader reader(file, source);
  ZS_CHECK(reader.bytes(kMagicAgain, kTokenMagic.size()) == kTokenMagic, source, " does not end with '", kTokenMagic,
           "': it is cut off or was not finished; make it again");
  ZS_CHECK(reader.number(kFootHash) == hash_bytes(reader.bytes(0, kFootHash).data(), kFootHash), source,
           ": the checksum of its foot is wrong: ", FootReader::kAdvice);
  TokenFoot foot;
  foot.id_bytes = int32_t(reader.small(kIdBytes));
  ZS_CHECK(foot.id_bytes == 2 || foot.id_bytes == 4, source, ": the foot's id_bytes is ", reader.small(kIdBytes),
           ", must be 2 or 4");
  const uint32_t flags = reader.small(kFlags);
  ZS_CHECK((flags & ~kMasked) == 0, source, ": the foot's flags are ", flags, ", this zeroshard knows ", kMasked);
  foot.masked = flags == kMasked;
  foot.tokens = reader.count(kTokens, "number of tokens", 1, size / foot.id_bytes);
  foot.documents = reader.count(kDocuments, "number of documents", 1, std::min(foot.tokens, size / 8));
  foot.vocab_size = reader.count(kVocabSize, "vocab_size", 1, INT64_C(1) << (foot.id_bytes == 2 ? 16 : 31));
  foot.max_id = reader.count(kMaxId, "largest id", 0, foot.vocab_size - 1);
  foot.max_position = reader.count(kMaxPosition, "position of the largest id", 0, foot.tokens - 1);
  foot.learned = reader.count(kLearned, "number of learned tokens", foot.masked ? 0 : foot.tokens, foot.tokens);
  const std::string_view digest = reader.bytes(kTokenizer, kTokenizerDigestBytes);
  if (digest != std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", kTokenizerDigestBytes)) {
    ZS_CHECK(digest.find_first_not_of("0123456789abcdef") == digest.npos, source,
             ": the foot's tokenizer is not a digest of hexadecimal digits");
    foot.tokenizer = digest;
  }
  foot.table_hash = reader.number(kTableHash);
  const TokenSections at = token_sections(foot);
  ZS_CHECK(at.file_bytes == size, source, " has ", size, " bytes, its foot tells of ", at.file_bytes, ": ",
           FootReader::kAdvice);
  ZS_CHECK(foot.table_hash == hash_bytes(file.data() + at.table, at.foot - at.table), source,
           ": the checksum of its table of checksums is wrong: ", FootReader::kAdvice);
  return foot;
}

}  // namespace zeroshard
