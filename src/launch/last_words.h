#pragma once
#include <string>
#include <vector>

namespace zeroshard {

// What the last lines that a rank wrote to stderr say of its end.
struct LastWords {
  std::vector<std::string> message;  // the error that ended it, as far as can be told; else its last line
  std::vector<std::string> before;   // what it wrote before that, newest last
  bool is_last = true;               // nothing was left out after the message, such as frames
};

// Leaves out the stack frames below a C++ error, which can be longer than all else, zeroshard's own log, a traceback
// that is written again, and the "[rank1]: " that torch puts before its lines. Notes of a Python exception stay with
// it.
LastWords last_words(const std::vector<std::string>& lines);

}  // namespace zeroshard
