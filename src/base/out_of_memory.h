#pragma once
#include <new>
#include <stdexcept>
#include <string>

namespace zeroshard {

// Thrown if there is no memory, because an allocation failed or would have passed a limit of the ledger. The message
// says what the memory was for. Python gets a MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // std::runtime_error, because its copies cannot fail
};

}  // namespace zeroshard
