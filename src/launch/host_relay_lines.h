#pragma once
#include <string>
#include <string_view>

#include "base/format.h"

namespace zeroshard {

// On standard output of a host that was started from another one, before and after what its ranks write. The nonce of
// the order keeps ranks from writing the same; the code follows the second one.
inline std::string begin_mark(std::string_view nonce) {
  return concat("zeroshard-host ", nonce, " begins");
}
inline std::string end_mark(std::string_view nonce) {
  return concat("zeroshard-host ", nonce, " ends with code ");
}

}  // namespace zeroshard
