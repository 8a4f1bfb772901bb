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

  // Sets `line` to the next line. The line has its newline, except that the last line of an input and the rows of a
  // ParquetReader can lack one. `line` is valid until the next call. Returns false at the end of the input. Throws
  // ValueError for a line of more than `max_bytes`, and IoError.
  virtual bool next(std::string_view& line, int64_t max_bytes) = 0;
  const std::string& path() const { return path_; }
  int64_t line() const { return line_; }    // number of the last line, counted from 1; 0: no line was read yet
  int64_t bytes() const { return bytes_; }  // bytes of the input that were read

 protected:
  explicit LineSource(std::string path) : path_(std::move(path)) {}

  std::string path_;
  int64_t line_ = 0, bytes_ = 0;
};

// Reads the lines of a file, pipe or device.
class LineReader : public LineSource {
 public:
  // `path` "-" means standard input. Throws IoError.
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

// Opens an input for reading. `flags` are added to the flags of open(2). Throws IoError if that fails or if the input
// is a directory, ValueError for an empty path or one with a zero byte, and Error if `stop` is set.
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
  // Throws ValueError if `inputs` has a Parquet file but the library that reads such files is missing.
  DocumentReader(const std::vector<std::string>& inputs, const TokenizeOptions& options);

  // Returns the next document, or nothing at the end.
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
  bool more_of_file_ = true;  // false: all documents of a text file were returned
  int64_t bytes_ = 0;         // bytes of earlier files
};

}  // namespace zeroshard
