#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Which process made an object that no forked child may use: the child has a copy of it, but the connections and the
// shared memory behind it are its parent's.
class ProcessMark {
 public:
  ProcessMark();
  // Whether this process made the object. Two loads, no system call: cheap enough for every collective.
  bool is_own() const noexcept { return forks_ == forks_before_this_process; }
  // "process 12 is a fork of rank 1 (process 10), whose <what> this is". To be called where is_own() is false.
  std::string refusal(int rank, std::string_view what) const;

 private:
  static uint32_t forks_before_this_process;  // changed in a child alone, before anything else runs there

  uint32_t forks_;
  int32_t pid_;
};

}  // namespace zeroshard
