#include "zeroshard/token_file.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "data/foreign_tokens.h"
#include "data/mapped_file.h"
#include "data/token_format.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

constexpr int64_t kIds = INT64_C(1) << 31;  // ids below this fit into an int32

// Returns the id at `index` as int64, so that no stored id can wrap around to a valid one.
template <typename Stored>
int64_t load_id(const char* data, int64_t index) {
  return int64_t(load<Stored>(data + index * int64_t(sizeof(Stored))));
}

// Returns call(id). The argument `id` is a function, and id(i) returns the i-th id of the array at `data`, whose ids
// have the type `type`.
template <typename Call>
auto with_ids(IdType type, const char* data, const Call& call) {
  switch (type) {
    case IdType::kUint16:
      return call([data](int64_t i) { return load_id<uint16_t>(data, i); });
    case IdType::kUint32:
      return call([data](int64_t i) { return load_id<uint32_t>(data, i); });
    case IdType::kInt32:
      return call([data](int64_t i) { return load_id<int32_t>(data, i); });
    case IdType::kInt64:
      break;
  }
  return call([data](int64_t i) { return load_id<int64_t>(data, i); });
}

}  // namespace

struct TokenFile::Impl {
  Impl(const std::string& path, std::optional<int32_t> eos) : file_(path) {
    info_.path = path;
    info_.bytes = int64_t(file_.bytes().size());
    ZS_CHECK(info_.bytes > 0, path, " is empty: it holds no tokens");
    if (!path.ends_with(".u16") && file_.bytes().starts_with(kTokenMagic)) {
      open_own();
    } else {
      open_foreign(eos);
    }
  }

  void open_own() {
    foot_ = parse_token_foot(file_.bytes(), info_.path);
    info_.format = "zeroshard";
    info_.tokens = foot_.tokens;
    info_.documents = foot_.documents;
    info_.id_bytes = foot_.id_bytes;
    info_.vocab_size = foot_.vocab_size;
    info_.max_id = foot_.max_id;
    info_.max_position = foot_.max_position;
    info_.masked = foot_.masked;
    info_.learned = foot_.learned;
    info_.tokenizer = foot_.tokenizer;
    type_ = foot_.id_bytes == 2 ? IdType::kUint16 : IdType::kUint32;
    ids_ = file_.bytes().data() + kTokenHeadBytes;
    const TokenSections at = token_sections(foot_);
    if (foot_.masked) mask_ = file_.bytes().data() + at.mask;
    ends_ = file_.bytes().data() + at.ends;
    for (int64_t piece = at.ends / kPieceBytes; piece < at.pieces; ++piece)
      ZS_CHECK(piece_is_whole(piece), info_.path, ": the checksum of its index of documents is wrong (",
               piece_text(piece), "): it is damaged, make it again");
    check_ends();
  }

  // Checks that the ends of the documents ascend and that the last end is the number of tokens. A correct checksum does
  // not prove that, because the program that made the file can have computed the checksum of wrong ends.
  void check_ends() const {
    int64_t before = 0;
    for (int64_t document = 0; document < info_.documents; ++document) {
      const uint64_t end = load<uint64_t>(ends_ + document * 8);
      const bool last = document + 1 == info_.documents;
      ZS_CHECK(end > uint64_t(before) && end <= uint64_t(info_.tokens) && (!last || end == uint64_t(info_.tokens)),
               info_.path, ": document ", document, " ends at token ", end, ", must end ",
               last ? "at the last one, " : "between the one before and the last one, ", before, " and ", info_.tokens,
               ": the file is damaged, make it again");
      before = int64_t(end);
    }
  }

  void open_foreign(std::optional<int32_t> eos) {
    const ForeignTokens found = parse_foreign_tokens(file_.bytes(), info_.path);
    ZS_CHECK(found.tokens > 0, info_.path, " holds no tokens");
    info_.format = found.format;
    info_.tokens = info_.learned = found.tokens;
    info_.id_bytes = bytes_of(found.type);
    type_ = found.type;
    ids_ = file_.bytes().data() + found.begin;
    if (eos) {
      with_ids(type_, ids_, [&](const auto& id) {
        for (int64_t i = 0; i < info_.tokens; ++i)
          if (id(i) == *eos) found_ends_.push_back(i + 1);
      });
    }
    if (found_ends_.empty() || found_ends_.back() != info_.tokens) found_ends_.push_back(info_.tokens);
    info_.documents = int64_t(found_ends_.size());
  }

  bool piece_is_whole(int64_t piece) const {
    file_.check_whole();
    const TokenSections at = token_sections(foot_);
    const int64_t begin = piece * kPieceBytes, size = std::min(kPieceBytes, at.body_end - begin);
    const char* const data = file_.bytes().data();
    return load<uint64_t>(data + at.table + piece * 8) == hash_bytes(data + begin, size);
  }

  std::string piece_text(int64_t piece) const {
    const int64_t end = std::min((piece + 1) * kPieceBytes, token_sections(foot_).body_end);
    return concat("bytes ", piece * kPieceBytes, " to ", end);
  }

  [[noreturn]] void fail_id(int64_t position, int64_t id, int64_t limit) const {
    const std::string allowed =
        limit == kIds ? std::string("ids are from 0 to 2^31 - 1") : concat("the vocabulary has ", limit, " ids");
    throw ValueError(concat(info_.path, ": token ", position, " is ", id, ", but ", allowed,
                            ": it was made with another tokenizer, or is damaged"));
  }

  void read(int64_t begin, std::span<int32_t> ids, int64_t limit) const {
    const auto count = int64_t(ids.size());
    ZS_CHECK(begin >= 0 && begin <= info_.tokens && count <= info_.tokens - begin, "tokens ", begin, " to ",
             begin + count, " of ", info_.path, ", which has ", info_.tokens);
    file_.check_whole();
    with_ids(type_, ids_, [&](const auto& id) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t value = id(begin + i);
        if (value < 0 || value >= limit) fail_id(begin + i, value, limit);
        ids[size_t(i)] = int32_t(value);
      }
    });
  }

  void check_ids(int64_t limit) const {
    if (info_.max_id >= 0) {
      if (info_.max_id >= limit) fail_id(info_.max_position, info_.max_id, limit);
      return;
    }
    file_.check_whole();
    with_ids(type_, ids_, [&](const auto& id) {
      for (int64_t i = 0; i < info_.tokens; ++i)
        if (id(i) < 0 || id(i) >= limit) fail_id(i, id(i), limit);
    });
  }

  uint64_t identity() const {
    const std::string_view bytes = file_.bytes();
    if (info_.format == "zeroshard") return hash_bytes(bytes.data() + bytes.size() - kTokenFootBytes, kTokenFootBytes);
    constexpr int64_t kSample = 1 << 16, kSamples = 64;
    std::vector<uint64_t> parts{uint64_t(bytes.size())};
    const int64_t sample = std::min(kSample, info_.bytes);
    for (int64_t i = 0; i < kSamples; ++i) {
      // The samples include the first and the last bytes.
      const auto begin = int64_t(double(info_.bytes - sample) * (double(i) / double(kSamples - 1)));
      parts.push_back(hash_bytes(bytes.data() + begin, sample));
      if (sample == info_.bytes) break;
    }
    return hash_bytes(parts.data(), int64_t(parts.size() * sizeof(uint64_t)));
  }

  MappedFile file_;
  TokenFileInfo info_;
  TokenFoot foot_;  // only for zeroshard's own format
  IdType type_ = IdType::kUint16;
  const char* ids_ = nullptr;
  const char* mask_ = nullptr;       // a bit per token; null: no mask
  const char* ends_ = nullptr;       // only for zeroshard's own format
  std::vector<int64_t> found_ends_;  // only for formats of other programs
};

TokenFile::TokenFile(const std::string& path, std::optional<int32_t> eos) : impl_(std::make_unique<Impl>(path, eos)) {}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;

const TokenFileInfo& TokenFile::info() const {
  return impl_->info_;
}

int64_t TokenFile::document_end(int64_t document) const {
  ZS_CHECK(document >= 0 && document < impl_->info_.documents, "document ", document, " of ", impl_->info_.path,
           ", which has ", impl_->info_.documents);
  if (impl_->ends_ == nullptr) return impl_->found_ends_[size_t(document)];
  return load<int64_t>(impl_->ends_ + document * 8);
}

void TokenFile::read(int64_t begin, std::span<int32_t> ids, int64_t limit) const {
  impl_->read(begin, ids, std::min(limit, kIds));
}

bool TokenFile::learned(int64_t position) const {
  ZS_CHECK(position >= 0 && position < impl_->info_.tokens, "token ", position, " of ", impl_->info_.path,
           ", which has ", impl_->info_.tokens);
  return impl_->mask_ == nullptr || (uint8_t(impl_->mask_[position / 8]) >> (position % 8) & 1) != 0;
}

void TokenFile::check_ids(int64_t limit) const {
  impl_->check_ids(std::min(limit, kIds));
}

void TokenFile::check_whole() const {
  impl_->file_.check_whole();
}

std::vector<std::string> TokenFile::verify() const {
  std::vector<std::string> damaged;
  if (impl_->info_.format != "zeroshard") return damaged;
  const int64_t pieces = token_sections(impl_->foot_).pieces;
  for (int64_t piece = 0; piece < pieces; ++piece)
    if (!impl_->piece_is_whole(piece))
      damaged.push_back(concat(impl_->info_.path, ": the checksum of ", impl_->piece_text(piece), " is wrong"));
  return damaged;
}

uint64_t TokenFile::identity() const {
  return impl_->identity();
}

}  // namespace zeroshard
