#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file/io.h"
#include "zeroshard/tokenize.h"

namespace zeroshard {

struct ParquetPlugin;

// An input that consists of lines.
class LineSource {
 public:
  virtual ~LineSource() = default;

  // Sets `line` to the next line, which is valid until the next call. A line of a LineReader ends with its newline,
  // which only the last line can lack. A line of a ParquetReader has no newline. Returns false at the end of the input.
  // Throws ValueError for a line of more than `max_bytes` bytes, and for Parquet data in the input of a LineReader.
  // Throws IoError if reading fails, and Error if the `stop` of the reader is set.
  virtual bool next(std::string_view& line, int64_t max_bytes) = 0;
  const std::string& path() const { return path_; }
  int64_t line() const { return line_; }    // number of the last line read, from 1; 0: none yet
  int64_t bytes() const { return bytes_; }  // bytes of the input that were read

 protected:
  explicit LineSource(std::string path) : path_(std::move(path)) {}

  std::string path_;
  int64_t line_ = 0, bytes_ = 0;
};

// Reads the lines of a file, pipe or device.
class LineReader : public LineSource {
 public:
  // `path` "-" means standard input. Throws the errors of open_input().
  LineReader(const std::string& path, const std::atomic<bool>* stop);

  bool next(std::string_view& line, int64_t max_bytes) override;

 private:
  bool fill();

  OpenFd owned_;
  int fd_;
  const std::atomic<bool>* stop_;
  std::string buffer_;
  // Positions in buffer_: the start of the next line, and the end of the part that was searched for a newline.
  size_t begin_ = 0, searched_ = 0;
  bool ended_ = false;
};

// Opens an input for reading. `flags` are added to the flags of open(2). Throws IoError if the input cannot be opened
// or is a directory, ValueError for an empty path or one with a zero byte, and Error if `stop` is set. `stop` can be
// null.
OpenFd open_input(const std::string& path, int flags, const std::atomic<bool>* stop);

// Throws Error if `stop` is set. `stop` can be null.
void check_stop(const std::atomic<bool>* stop);

// A document as it was read: either a text or a line of JSON.
struct RawDocument {
  std::string text;
  bool json = false;
  uint32_t file = 0;  // index of the input
  int64_t line = 0;   // line where the document begins; in Parquet, its row
};

// Reads the documents of all inputs, one after another.
class DocumentReader {
 public:
  // Throws ValueError if `inputs` has a Parquet file but load_parquet_plugin() fails. `inputs` and `options` must live
  // as long as the reader.
  DocumentReader(const std::vector<std::string>& inputs, const TokenizeOptions& options);

  // Returns the next document, or nothing after the last one. Throws the errors of opening and reading an input, and
  // ValueError for a document of more than max_document_bytes.
  std::optional<RawDocument> next();
  int64_t bytes() const { return bytes_ + (reader_ ? reader_->bytes() : 0); }

 private:
  bool is_json(const std::string& path) const;
  bool ends_document(std::string_view line) const;
  std::unique_ptr<LineSource> open(const std::string& path) const;
  std::optional<RawDocument> next_of_file();
  bool next_text(RawDocument& document);

  const std::vector<std::string>& inputs_;
  const TokenizeOptions& options_;
  const ParquetPlugin* parquet_ = nullptr;  // set if an input is a Parquet file
  std::unique_ptr<LineSource> reader_;
  size_t file_ = 0;
  bool more_of_file_ = true;  // false: reader_ has reached the end of a text file
  int64_t bytes_ = 0;         // bytes of the files before the current one
};

}  // namespace zeroshard
