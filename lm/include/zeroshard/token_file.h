#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Reads files of token ids in the formats of zeroshard (docs/token-files.md), llm.c and NumPy, and files of plain
// uint16. Writes only files in the format of zeroshard.
namespace zeroshard {

class Io;

struct TokenFileInfo {
  std::string path;
  std::string format;  // "zeroshard", "llm.c", "npy" or "u16"
  int64_t bytes = 0, tokens = 0, documents = 0;
  int id_bytes = 0;
  // The members below, except `masked` and `learned`, are known only for zeroshard's own files.
  int64_t vocab_size = 0;     // 0: not known
  int64_t max_id = -1;        // -1: not known
  int64_t max_position = -1;  // position of the first token with the id max_id
  bool masked = false;        // true: the file marks the tokens that are learned as targets
  int64_t learned = 0;        // number of tokens that are learned as targets; all if not `masked`
  std::string tokenizer;      // Tokenizer::digest(); empty: not known
};

// A file of tokens that is mapped into memory. The constructor checks the metadata, and read() checks the ids that it
// reads. Nobody may change the file while the object exists. If somebody has truncated it, check_whole() and all
// functions that read ids or checksums throw IoError. document_end(), learned() and identity() do not check for a
// truncation, so they can crash the process after one. document_end() and learned() are called too often for a check. A
// call that is running while the file is truncated can also crash the process. Any number of threads may use the
// object.
class TokenFile {
 public:
  // Only zeroshard's own files have an index of documents. In a file of another program, each token `eos` ends a
  // document, and the constructor reads the whole file to find these tokens. Without `eos`, such a file is one
  // document. Throws IoError, or a ValueError that names the file and the field.
  explicit TokenFile(const std::string& path, std::optional<int32_t> eos = std::nullopt);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;

  const TokenFileInfo& info() const;
  // Returns the position after the last token of a document. Documents follow each other without gaps and are never
  // empty.
  int64_t document_end(int64_t document) const;

  // Reads ids.size() tokens from position `begin` on. Throws ValueError for an id that is negative or not below
  // `limit`, and for a position outside of the file.
  void read(int64_t begin, std::span<int32_t> ids, int64_t limit = INT64_C(1) << 31) const;
  // Returns whether the token at `position` is learned as a target. Without a mask, all tokens are.
  bool learned(int64_t position) const;

  // Throws ValueError if an id is not below `limit`. For zeroshard's own files the message names the first token with
  // the largest id, which the file stores. For a file of another program the function reads the whole file, and the
  // message names the first wrong token.
  void check_ids(int64_t limit) const;
  // Throws IoError if the file has been truncated since it was opened.
  void check_whole() const;
  // Compares every byte with the checksums. Returns one line per damaged part. Returns no line for files of other
  // programs, because these have no checksums.
  std::vector<std::string> verify() const;
  // Returns a number that identifies the contents. For zeroshard's own files it depends on all contents. For files of
  // other programs it depends on the size and on samples that are spread from the beginning to the end.
  uint64_t identity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenFileOptions {
  int64_t vocab_size = 0;  // every id is below this; with a size up to 65536 an id takes 2 bytes, else 4
  bool masked = false;     // true: the file marks the tokens that are learned as targets
  std::string tokenizer;   // 16 hexadecimal digits, or empty
};

// Writes a token file, document by document, with a few MiB of memory. After finish() the file has its name and is on
// the disk for good. Before that, and after a failure, the name does not exist or still has its old contents. There is
// one exception: if only the last step of finish() failed, the new file exists, but a power failure can undo it.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const TokenFileOptions& options);
  TokenFileWriter(Io& io, const std::string& path, const TokenFileOptions& options);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // Appends one document, or nothing if the document is empty. For a masked file, `learn` has one number per token,
  // which is 0 if the token is not learned as a target. If `learn` is empty, all tokens are learned. After an error of
  // this function or of finish(), the object may only be destroyed.
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
