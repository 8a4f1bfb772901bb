#pragma once
#include <string>
#include <string_view>

#include "base/format.h"

namespace zeroshard {

// The lines that a host started from another host prints to standard output, before and after the output of its ranks.
// The exit code follows the second mark. The nonce of the order prevents that ranks print the same lines.
inline std::string begin_mark(std::string_view nonce) {
  return concat("zeroshard-host ", nonce, " begins");
}
inline std::string end_mark(std::string_view nonce) {
  return concat("zeroshard-host ", nonce, " ends with code ");
}

}  // namespace zeroshard
