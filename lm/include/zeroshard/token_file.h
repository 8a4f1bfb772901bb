#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Files of token ids: zeroshard's own (docs/token-files.md), llm.c's, NumPy's, and plain uint16.
namespace zeroshard {

class Io;

struct TokenFileInfo {
  std::string path;
  std::string format;  // "zeroshard", "llm.c", "npy" or "u16"
  int64_t bytes = 0, tokens = 0, documents = 0;
  int id_bytes = 0;
  // What only zeroshard's own files tell:
  int64_t vocab_size = 0;     // 0: not known
  int64_t max_id = -1;        // -1: not known
  int64_t max_position = -1;  // of the first token with that id
  bool masked = false;        // some tokens are not to be learned as targets
  int64_t learned = 0;        // tokens that are; without a mask all
  std::string tokenizer;      // Tokenizer::digest(); empty: not known
};

// A mapped file of tokens. What it says of itself is checked when it is opened; ids when they are read. It must not
// change meanwhile: a process that reads past the end of a file that has become shorter dies. Safe for concurrent
// calls.
class TokenFile {
 public:
  // `eos`: where documents end in a file that has no index of them (this reads the whole file); unset: it is one
  // document. Throws IoError, or ValueError that names file and field.
  explicit TokenFile(const std::string& path, std::optional<int32_t> eos = std::nullopt);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;

  const TokenFileInfo& info() const;
  // The position behind the last token of a document. Documents follow each other without gaps and are never empty.
  int64_t document_end(int64_t document) const;

  // Tokens from position `begin` on. Throws ValueError for an id that is negative or not below `limit`.
  void read(int64_t begin, std::span<int32_t> ids, int64_t limit = INT64_C(1) << 31) const;
  bool learned(int64_t position) const;

  // Throws ValueError naming the first token whose id is not below `limit`. Reads all of a foreign file.
  void check_ids(int64_t limit) const;
  // Compares every byte with the checksums; one line for each damaged stretch. Nothing to compare in foreign files.
  std::vector<std::string> verify() const;
  // Depends on all that is in an own file; on size, begin, end and samples of a foreign one.
  uint64_t identity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenFileOptions {
  int64_t vocab_size = 0;  // every id is smaller; up to 65536 an id takes 2 bytes, else 4
  bool masked = false;
  std::string tokenizer;  // 16 hexadecimal digits, or empty
};

// Writes a file of tokens, document by document, in a few MiB of memory. It has its name, and all of its contents
// durably, after finish(). Before that, and when anything fails, there is nothing of that name, or what was there
// before; only when the last step of finish() failed, all is there, but perhaps no more after a power failure.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const TokenFileOptions& options);
  TokenFileWriter(Io& io, const std::string& path, const TokenFileOptions& options);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // One document; nothing when it is empty. `learn`, of a masked file alone: 0 for a token that is no target.
  // After an error, of this or of finish(), only destruction is allowed.
  void append(std::span<const int32_t> ids, std::span<const uint8_t> learn = {});
  // Throws ValueError when there is no token at all.
  void finish();

  int64_t tokens() const;
  int64_t documents() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
