#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace zeroshard {

// The last report of a rank through its Heartbeat.
struct HeartbeatState {
  enum class Activity { kNone, kBeating, kFinished } activity = Activity::kNone;  // kNone: no step yet
  pid_t owner = 0;                                                                // 0: it has not connected
  uint32_t dumps = 0;                                                             // stacks printed
  int64_t step = 0;
  int64_t progress_ns = 0;       // CLOCK_MONOTONIC
  int64_t meeting_since_ns = 0;  // 0: not waiting for ranks to arrive
  int32_t meeting_size = 0;      // the number of ranks it waits for, itself included
  pid_t waiting_thread = 0;
  int64_t waiting_since_ns = 0;  // 0: not waiting
  std::string where;             // where it waits; printable
};

// The launcher's side of the memory into which its ranks write heartbeats.
class HeartbeatBoard {
 public:
  // Throws Error when the kernel has no sealed memory files.
  explicit HeartbeatBoard(int slots);
  ~HeartbeatBoard();
  HeartbeatBoard(const HeartbeatBoard&) = delete;

  // Closes on exec unless told otherwise.
  int fd() const { return fd_.get(); }
  int slots() const { return slots_; }
  HeartbeatState read(int local_rank) const;
  // Tells all ranks how the job has failed on another host. Only the first call has an effect.
  void tell(std::string_view news);
  // True once any rank has reported a step.
  bool any_step() const;

 private:
  UniqueFd fd_;
  int slots_;
  void* board_ = nullptr;
};

}  // namespace zeroshard
