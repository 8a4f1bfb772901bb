#include "data/document_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "data/parquet_reader.h"

namespace zeroshard {
namespace {

constexpr size_t kReadBytes = 1 << 18;

std::string_view without_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == line.npos;
}

}  // namespace

void check_stop(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load()) throw Error("interrupted");
}

OpenFd open_input(const std::string& path, int flags, const std::atomic<bool>* stop) {
  ZS_CHECK(!path.empty() && path.find('\0') == path.npos, "the path of an input is empty or contains a zero byte");
  const int fd = retry_interrupted([&] {
    check_stop(stop);
    const int result = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
    return result < 0 ? -errno : result;
  });
  check_io(fd, "open", path);
  OpenFd owned(posix_io(), fd);
  struct stat found;
  if (::fstat(fd, &found) == 0 && S_ISDIR(found.st_mode))
    throw IoError(concat("cannot read ", path, ": it is a directory; name the files in it"));
  return owned;
}

LineReader::LineReader(const std::string& path, const std::atomic<bool>* stop)
    : LineSource(path == "-" ? "standard input" : path), fd_(0), stop_(stop) {
  if (path == "-") return;
  owned_ = open_input(path, 0, stop);
  fd_ = owned_.get();
}

bool LineReader::fill() {
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  const size_t size = buffer_.size();
  buffer_.resize(size + kReadBytes);
  const auto got = retry_interrupted([&] {
    check_stop(stop_);
    const ssize_t result = ::read(fd_, buffer_.data() + size, kReadBytes);
    return int64_t(result < 0 ? -errno : result);
  });
  buffer_.resize(size + size_t(std::max<int64_t>(got, 0)));
  check_io(got, "read", path_);
  bytes_ += got;
  if (line_ == 0) refuse_parquet(buffer_, path_);
  return got > 0;
}

bool LineReader::next(std::string_view& line, int64_t max_bytes) {
  while (true) {
    const size_t newline = buffer_.find('\n', searched_);
    size_t end = newline == buffer_.npos ? buffer_.size() : newline + 1;
    ZS_CHECK(int64_t(end - begin_) <= max_bytes, path_, ":", line_ + 1, ": the line has more than ", max_bytes,
             " bytes, too many for one document: divide it, or allow more");
    searched_ = end;
    if (newline == buffer_.npos && !ended_) {
      ended_ = !fill();
      continue;
    }
    if (end == begin_) return false;
    line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = end;
    ++line_;
    return true;
  }
}

DocumentReader::DocumentReader(const std::vector<std::string>& inputs, const TokenizeOptions& options)
    : inputs_(inputs), options_(options) {
  // Loads the Parquet plugin now, so that a missing plugin is an error before any file is read.
  const auto found = std::find_if(inputs.begin(), inputs.end(), is_parquet);
  if (found != inputs.end()) parquet_ = &load_parquet_plugin(*found);
}

bool DocumentReader::is_json(const std::string& path) const {
  using Format = TokenizeOptions::Format;
  if (is_parquet(path)) return true;
  if (options_.format != Format::kAuto) return options_.format != Format::kText;
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

std::unique_ptr<LineSource> DocumentReader::open(const std::string& path) const {
  if (is_parquet(path)) return std::make_unique<ParquetReader>(*parquet_, path, options_);
  return std::make_unique<LineReader>(path, options_.stop);
}

std::optional<RawDocument> DocumentReader::next() {
  for (; file_ < inputs_.size(); ++file_) {
    if (!reader_) {
      reader_ = open(inputs_[file_]);
      more_of_file_ = true;
    }
    if (std::optional<RawDocument> document = next_of_file()) return document;
    bytes_ += reader_->bytes();
    reader_.reset();
  }
  return std::nullopt;
}

std::optional<RawDocument> DocumentReader::next_of_file() {
  RawDocument document;
  document.file = uint32_t(file_);
  document.json = is_json(inputs_[file_]);
  if (!document.json) return next_text(document) ? std::optional(std::move(document)) : std::nullopt;
  std::string_view line;
  while (reader_->next(line, options_.max_document_bytes)) {
    if (is_blank(line)) continue;
    document.text = without_end(line);
    document.line = reader_->line();
    return document;
  }
  return std::nullopt;
}

bool DocumentReader::ends_document(std::string_view line) const {
  using Split = TokenizeOptions::Split;
  return options_.split == Split::kBlankLines
             ? is_blank(line)
             : options_.split == Split::kLine && without_end(line) == options_.separator;
}

// Reads the next document of a text file, and skips empty ones. Returns false if there is none. The newline before a
// separator does not belong to the document. The newline at the end of the file belongs to the document only with
// Split::kFile.
bool DocumentReader::next_text(RawDocument& document) {
  if (!more_of_file_) return false;
  std::string_view line;
  while (true) {
    const int64_t room = options_.max_document_bytes - int64_t(document.text.size());
    if (!reader_->next(line, options_.max_document_bytes)) {
      more_of_file_ = false;
      if (options_.split != TokenizeOptions::Split::kFile) document.text.resize(without_end(document.text).size());
      return !document.text.empty();
    }
    if (document.line == 0) document.line = reader_->line();
    if (ends_document(line)) {
      if (document.text.empty()) {
        document.line = 0;
        continue;
      }
      document.text.resize(without_end(document.text).size());
      return true;
    }
    ZS_CHECK(int64_t(line.size()) <= room, reader_->path(), ":", document.line,
             ": the document that begins here has more than ", options_.max_document_bytes,
             " bytes: divide it with a separator, or allow more");
    document.text += line;
  }
}

}  // namespace zeroshard
