#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Cuts the output of one rank into lines and puts a prefix before each. If a line rewrites itself with carriage returns
// (a progress bar), its last state is kept, as a terminal would show it.
class LineBuffer {
 public:
  explicit LineBuffer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends the lines that `bytes` completes to `out`. A line longer than kMaxLineBytes is cut.
  void append(std::string_view bytes, std::string& out);
  // Appends the incomplete line, if any, and a newline.
  void flush(std::string& out);
  bool empty() const { return line_.empty(); }

  static constexpr size_t kMaxLineBytes = size_t{1} << 20;

 private:
  void emit(std::string_view line, std::string& out) const;

  std::string prefix_, line_;
};

// The last lines of a stream, for the report of a failure.
class Tail {
 public:
  void append(std::string_view bytes);
  // At most `count`, without newlines; longer lines are cut after 500 bytes and end with "...".
  std::vector<std::string> lines(size_t count) const;

 private:
  std::string bytes_;
};

}  // namespace zeroshard
