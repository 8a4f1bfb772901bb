#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/process_name.h"
#include "data/token_format.h"
#include "file/durable.h"
#include "file/hash.h"
#include "zeroshard/token_file.h"

namespace zeroshard {
namespace {

// The number of bytes that a FileWriter reserves in a file at first. A longer file grows, and finish() cuts off what a
// shorter one does not need. A FileWriter also has up to two buffers of this size in memory.
constexpr int64_t kReservedBytes = 1 << 20;

// Collects a section of the token file in a temporary file, which can be read after finish().
class Spill {
 public:
  Spill(Directory& directory, std::string name) : name_(std::move(name)), writer_(directory, name_, kReservedBytes) {}

  template <typename Number>
  void add(Number number) {
    const size_t begin = buffer_.size();
    buffer_.resize(begin + sizeof(number));
    std::memcpy(buffer_.data() + begin, &number, sizeof(number));
    if (buffer_.size() >= kBuffered) flush();
  }
  void finish() {
    flush();
    writer_.finish();
  }
  const std::string& name() const { return name_; }

 private:
  static constexpr size_t kBuffered = 1 << 16;
  void flush() {
    writer_.append(buffer_.data(), int64_t(buffer_.size()));
    buffer_.clear();
  }

  std::string name_;
  FileWriter writer_;
  std::vector<std::byte> buffer_;
};

// Collects the mask, one bit for each token.
class MaskSpill {
 public:
  MaskSpill(Directory& directory, std::string name) : spill_(directory, std::move(name)) {}

  void add(bool learned) {
    bits_ = uint8_t(bits_ | (learned ? 1U << count_ : 0U));
    if (++count_ == 8) flush();
  }
  // Returns the spill with all bits. The last byte may have fewer than 8 bits.
  Spill& all() {
    if (count_ > 0) flush();
    return spill_;
  }

 private:
  void flush() {
    spill_.add(bits_);
    bits_ = 0;
    count_ = 0;
  }

  Spill spill_;
  uint8_t bits_ = 0;  // bits that the spill does not have yet
  int count_ = 0;
};

// Deletes the temporary files of processes of this host that died while they wrote `name`.
void sweep(Directory& directory, const std::string& name) {
  const std::string begin = concat(".tmp-", name, ".");
  for (const std::string& other : directory.list()) {
    if (!other.starts_with(begin)) continue;
    const size_t last_dot = other.rfind('.');
    if (last_dot > begin.size() && has_ended(std::string_view(other).substr(begin.size(), last_dot - begin.size())))
      directory.remove(other);
  }
}

void check(const TokenFileOptions& options) {
  ZS_CHECK(options.vocab_size >= 1 && options.vocab_size <= INT64_C(1) << 31,
           "vocab_size must be between 1 and 2^31, got ", options.vocab_size);
  const bool digest = options.tokenizer.size() == kTokenizerDigestBytes &&
                      options.tokenizer.find_first_not_of("0123456789abcdef") == std::string::npos;
  ZS_CHECK(options.tokenizer.empty() || digest, "the tokenizer's digest must have 16 hexadecimal digits, got '",
           options.tokenizer, "'");
}

}  // namespace

struct TokenFileWriter::Impl {
  Impl(Io& io, const std::string& path, const TokenFileOptions& options)
      : Impl(io, path.substr(0, path.rfind('/') + 1), path.substr(path.rfind('/') + 1), options) {}

  Impl(Io& io, const std::string& folder, const std::string& file, const TokenFileOptions& options)
      : directory_(open_directory(io, folder, file)), name_(file), masked_(options.masked) {
    check(options);
    foot_.vocab_size = options.vocab_size;
    foot_.id_bytes = options.vocab_size <= 65536 ? 2 : 4;
    foot_.masked = options.masked;
    foot_.tokenizer = options.tokenizer;
    foot_.max_id = -1;
    sweep(directory_, name_);
    try {
      main_.emplace(directory_, remember(temporary_for(directory_, name_)), kReservedBytes);
      ends_.emplace(directory_, remember(temporary_name(name_)));
      if (masked_) mask_.emplace(directory_, remember(temporary_name(name_)));
      write(make_token_head());
    } catch (...) {
      clean();
      throw;
    }
  }

  ~Impl() { clean(); }

  static Directory open_directory(Io& io, const std::string& folder, const std::string& file) {
    ZS_CHECK(!file.empty() && file != "." && file != "..", "the path of a file of tokens must end with its name, got '",
             folder, file, "'");
    return Directory::open(io, folder.empty() ? "." : folder);
  }

  const std::string& remember(std::string name) { return temporaries_.emplace_back(std::move(name)); }

  void clean() noexcept {
    main_.reset();
    ends_.reset();
    mask_.reset();
    for (const std::string& name : temporaries_) directory_.io().unlink_at(directory_.fd(), name);
    temporaries_.clear();
  }

  void append(std::span<const int32_t> ids, std::span<const uint8_t> learn) {
    ZS_CHECK(state_ == State::kOpen, "append() to ", directory_.path_of(name_), ", which is finished or has failed");
    ZS_CHECK(learn.empty() || (masked_ && learn.size() == ids.size()), "a document of ", ids.size(), " tokens has ",
             learn.size(), " marks of what is learned, in a file ", masked_ ? "with" : "without", " a mask");
    if (ids.empty()) return;
    state_ = State::kFailed;  // kOpen again after success
    if (foot_.id_bytes == 2) {
      append_ids<uint16_t>(ids);
    } else {
      append_ids<uint32_t>(ids);
    }
    if (masked_) append_mask(ids.size(), learn);
    foot_.tokens += int64_t(ids.size());
    ++foot_.documents;
    ends_->add(uint64_t(foot_.tokens));
    state_ = State::kOpen;
  }

  template <typename Id>
  void append_ids(std::span<const int32_t> ids) {
    int64_t position = foot_.tokens;
    for (const int32_t id : ids) {
      ZS_CHECK(id >= 0 && id < foot_.vocab_size, "token ", position, " for ", directory_.path_of(name_), " is ", id,
               ", but the vocabulary has ", foot_.vocab_size, " ids");
      if (id > foot_.max_id) {
        foot_.max_id = id;
        foot_.max_position = position;
      }
      ++position;
      const size_t at = piece_.size();
      piece_.resize(at + sizeof(Id));
      const Id stored = Id(id);
      std::memcpy(piece_.data() + at, &stored, sizeof(Id));
      if (piece_.size() == size_t(kPieceBytes)) write_piece();
    }
  }

  void append_mask(size_t count, std::span<const uint8_t> learn) {
    for (size_t i = 0; i < count; ++i) {
      const bool learned = learn.empty() || learn[i] != 0;
      foot_.learned += learned;
      mask_->add(learned);
    }
  }

  void finish() {
    ZS_CHECK(state_ == State::kOpen, "finish() of ", directory_.path_of(name_), ", which is finished or has failed");
    ZS_CHECK(foot_.tokens > 0, "there is no token to write to ", directory_.path_of(name_));
    state_ = State::kFailed;  // kFinished after success
    if (!masked_) foot_.learned = foot_.tokens;
    pad();
    if (masked_) copy(mask_->all());
    copy(*ends_);
    const TokenSections at = token_sections(foot_);
    if (!piece_.empty()) write_piece();
    ZS_ASSERT(written_ == at.body_end && int64_t(table_.size()) == at.pieces);
    table_.resize(size_t(at.foot - at.table) / sizeof(uint64_t));
    foot_.table_hash = hash_bytes(table_.data(), at.foot - at.table);
    main_->append(table_.data(), at.foot - at.table);
    const auto foot = make_token_foot(foot_);
    main_->append(foot.data(), int64_t(foot.size()));
    main_->finish();
    directory_.rename(temporaries_.front(), name_);
    temporaries_.erase(temporaries_.begin());
    directory_.sync();
    clean();
    state_ = State::kFinished;
  }

  // Appends to the body of the file. Writes the body in pieces of kPieceBytes, each with a checksum in table_. A rest
  // of less than kPieceBytes stays in piece_, and finish() writes it as the last piece.
  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t size = std::min(bytes.size(), size_t(kPieceBytes) - piece_.size());
      piece_.insert(piece_.end(), bytes.begin(), bytes.begin() + std::ptrdiff_t(size));
      bytes = bytes.subspan(size);
      if (piece_.size() == size_t(kPieceBytes)) write_piece();
    }
  }

  void write_piece() {
    table_.push_back(hash_bytes(piece_.data(), int64_t(piece_.size())));
    main_->append(piece_.data(), int64_t(piece_.size()));
    written_ += int64_t(piece_.size());
    piece_.clear();
  }

  void pad() {
    const int64_t end = written_ + int64_t(piece_.size());
    write(std::vector<std::byte>(size_t(align_up(end, kTokenAlignment) - end)));
  }

  void copy(Spill& spill) {
    spill.finish();
    const FileReader reader(directory_, spill.name());
    std::vector<std::byte> buffer(size_t{1} << 18);
    for (int64_t at = 0; at < reader.size();) {
      const int64_t size = std::min(int64_t(buffer.size()), reader.size() - at);
      reader.read(at, buffer.data(), size);
      write(std::span(buffer).first(size_t(size)));
      at += size;
    }
    pad();
  }

  enum class State { kOpen, kFailed, kFinished };

  Directory directory_;
  std::string name_;
  bool masked_;
  State state_ = State::kOpen;
  TokenFoot foot_;
  std::vector<std::string> temporaries_;  // the first one becomes the file itself
  std::optional<FileWriter> main_;
  std::optional<Spill> ends_;      // the section after the ids and the mask
  std::optional<MaskSpill> mask_;  // the section after the ids, if there is a mask
  std::vector<std::byte> piece_;   // part of the body that is not written yet
  std::vector<uint64_t> table_;    // checksums of the written pieces
  int64_t written_ = 0;
};

TokenFileWriter::TokenFileWriter(const std::string& path, const TokenFileOptions& options)
    : TokenFileWriter(posix_io(), path, options) {}

TokenFileWriter::TokenFileWriter(Io& io, const std::string& path, const TokenFileOptions& options)
    : impl_(std::make_unique<Impl>(io, path, options)) {}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(std::span<const int32_t> ids, std::span<const uint8_t> learn) {
  impl_->append(ids, learn);
}

void TokenFileWriter::finish() {
  impl_->finish();
}

int64_t TokenFileWriter::tokens() const {
  return impl_->foot_.tokens;
}

int64_t TokenFileWriter::documents() const {
  return impl_->foot_.documents;
}

}  // namespace zeroshard
