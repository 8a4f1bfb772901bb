#pragma once
#include <string>
#include <string_view>

#include "base/format.h"

namespace zeroshard {

// The lines that `zeroshard run`, started from another host, prints to standard output before and after the output of
// its ranks. The second line ends with the exit code, which end_mark() leaves out. The lines contain the order's nonce,
// so that no output of a rank can be taken for them.
inline std::string begin_mark(std::string_view nonce) {
  return concat("zeroshard-host ", nonce, " begins");
}
inline std::string end_mark(std::string_view nonce) {
  return concat("zeroshard-host ", nonce, " ends with code ");
}

}  // namespace zeroshard
