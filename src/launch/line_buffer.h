#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Cuts one stream of output into lines, and puts a prefix before each line. If a line rewrites itself by carriage
// returns (a progress bar), only its last state is kept, as on a terminal.
class LineBuffer {
 public:
  explicit LineBuffer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends to `out` the lines that `bytes` completes, each with its newline. Splits lines that are longer than
  // kMaxLineBytes.
  void append(std::string_view bytes, std::string& out);
  // If there is an incomplete line, appends it and a newline to `out`.
  void flush(std::string& out);
  bool empty() const { return line_.empty(); }

  static constexpr size_t kMaxLineBytes = size_t{1} << 20;

 private:
  void emit(std::string_view line, std::string& out) const;

  std::string prefix_, line_;
};

// Keeps the last lines of a stream, so that a failure can be reported.
class Tail {
 public:
  void append(std::string_view bytes);
  // Returns at most the last `count` lines, oldest first, without newlines. A longer line is cut after 500 bytes and
  // ends with "...".
  std::vector<std::string> lines(size_t count) const;

 private:
  std::string bytes_;
};

}  // namespace zeroshard
