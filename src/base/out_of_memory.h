#pragma once
#include <new>
#include <stdexcept>
#include <string>

namespace zeroshard {

// Memory that was not to be had, with what it was for. Python sees a MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // whose copies cannot fail
};

}  // namespace zeroshard
