#pragma once
#include <sstream>
#include <string>

namespace zeroshard {

// Joins its arguments with operator<<: concat("rank ", 3) is "rank 3".
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // otherwise the text would be cut silently when memory runs out
  (out << ... << args);
  return out.str();
}

}  // namespace zeroshard
