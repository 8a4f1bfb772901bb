#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Remembers which process made an object that no forked child may use. The child has a copy of the object, but the
// connections and the shared memory that the object uses belong to the parent.
class ProcessMark {
 public:
  ProcessMark();
  // Returns whether this process made the object. The call takes two loads and no system call, so every collective can
  // afford it.
  bool is_own() const noexcept { return forks_ == forks_before_this_process; }
  // Returns an error message, which begins with "process 12 is a fork of rank 1 (process 10), whose <what> this is" and
  // says what to do instead. Must be called only if is_own() is false.
  std::string refusal(int rank, std::string_view what) const;

 private:
  static uint32_t forks_before_this_process;  // changes only in a new child, before fork() returns there

  uint32_t forks_;
  int32_t pid_;
};

}  // namespace zeroshard
