#pragma once
#include <string>
#include <vector>

namespace zeroshard {

// The error of a rank that ended, taken from the last lines that it wrote to stderr.
struct LastWords {
  std::vector<std::string> message;  // the error that ended the rank if it is recognised, otherwise the last line
  std::vector<std::string> before;   // the lines before the message, newest last
  bool is_last = true;               // nothing after the message, such as stack frames, was left out
};

// Finds the error in the last lines of a rank's stderr. Leaves out zeroshard's own log, repeated tracebacks, and the
// "[rank1]: " that torch puts before its lines. Also leaves out the stack frames below a C++ error, because they can be
// longer than everything else. Keeps the notes of a Python exception.
LastWords last_words(const std::vector<std::string>& lines);

}  // namespace zeroshard
