#pragma once
#include <string>
#include <vector>

namespace zeroshard {

// The error of a rank that has ended, found among the last lines that the rank wrote to stderr.
struct LastWords {
  std::vector<std::string> message;  // the error that ended the rank; if no error is recognised, the last line
  std::vector<std::string> before;   // the lines before the message, newest last
  // Says whether last_words() has kept the last line. If not, last_words() has left out lines after the message, such
  // as stack frames.
  bool is_last = true;
};

// Finds the error among the last lines of a rank's stderr. Leaves out empty lines, zeroshard's own log, torch's log
// lines that are no errors, repeated tracebacks, and the "[rank1]: " that torch puts before its lines. Also leaves out
// the stack frames below a C++ error, because they can be longer than everything else. Returns at most 20 lines of the
// error and 20 lines before it. Keeps the notes of a Python exception.
LastWords last_words(const std::vector<std::string>& lines);

}  // namespace zeroshard
