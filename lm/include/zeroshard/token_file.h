#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Files of token ids in the formats of zeroshard (docs/token-files.md), llm.c and NumPy, and as plain uint16.
namespace zeroshard {

class Io;

struct TokenFileInfo {
  std::string path;
  std::string format;  // "zeroshard", "llm.c", "npy" or "u16"
  int64_t bytes = 0, tokens = 0, documents = 0;
  int id_bytes = 0;
  // The following members are known only for zeroshard's own files:
  int64_t vocab_size = 0;     // 0: not known
  int64_t max_id = -1;        // -1: not known
  int64_t max_position = -1;  // position of the first token with that id
  bool masked = false;        // some tokens are not learned as targets
  int64_t learned = 0;        // number of learned tokens; all if there is no mask
  std::string tokenizer;      // Tokenizer::digest(); empty: not known
};

// A mapped file of tokens. Opening it checks the metadata, and reading an id checks that id. The file must not change
// meanwhile. If the file is truncated, the next call throws IoError. Only document_end() and learned() do not check,
// because they are called too often. After a truncation these two, and calls that are running, may end the process. Any
// number of threads may use the object.
class TokenFile {
 public:
  // If the file has no index of documents, a document ends at each `eos`, and the constructor reads the whole file to
  // find them. Without `eos`, such a file is one document. Throws IoError, or ValueError that names file and field.
  explicit TokenFile(const std::string& path, std::optional<int32_t> eos = std::nullopt);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;

  const TokenFileInfo& info() const;
  // Returns the position after the last token of a document. Documents follow each other without gaps and are never
  // empty.
  int64_t document_end(int64_t document) const;

  // Reads tokens from position `begin` on. Throws ValueError for an id that is negative or not below `limit`.
  void read(int64_t begin, std::span<int32_t> ids, int64_t limit = INT64_C(1) << 31) const;
  bool learned(int64_t position) const;

  // Throws ValueError that names the first token whose id is not below `limit`. Reads all of a foreign file.
  void check_ids(int64_t limit) const;
  // Throws IoError if the file has been truncated since it was opened.
  void check_whole() const;
  // Compares every byte with the checksums. Returns one line per damaged part. Foreign files have no checksums.
  std::vector<std::string> verify() const;
  // Returns a number that identifies the contents. For zeroshard's own files it depends on all contents. For foreign
  // files it depends on the size and on samples from the beginning, the end and between.
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

// Writes a token file, document by document, with a few MiB of memory. After finish() the file has its name, and its
// contents are durable. Before that, and after any failure, the name does not exist or still has its old contents. If
// only the last step of finish() failed, the new file exists, but a power failure may undo it.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const TokenFileOptions& options);
  TokenFileWriter(Io& io, const std::string& path, const TokenFileOptions& options);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // Appends one document; does nothing if it is empty. `learn` is only for a masked file: 0 for a token that is not a
  // target. After an error of this function or of finish(), only destruction is allowed.
  void append(std::span<const int32_t> ids, std::span<const uint8_t> learn = {});
  // Completes the file and gives it its name. Throws ValueError if there is no token at all.
  void finish();

  int64_t tokens() const;
  int64_t documents() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
