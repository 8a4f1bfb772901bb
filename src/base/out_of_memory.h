#pragma once
#include <new>
#include <stdexcept>
#include <string>

namespace zeroshard {

// Thrown if an allocation failed, or if it would have passed a limit of the memory ledger (memory/ledger.h). The
// message says what the memory was for. Python gets a MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // not a std::string, because copying that can throw
};

}  // namespace zeroshard
