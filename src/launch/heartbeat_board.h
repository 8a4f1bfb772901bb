#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace zeroshard {

// The last report that a rank made through its Heartbeat.
struct HeartbeatState {
  // kNone means that the rank has reported no step yet. kFinished means that no further step is expected.
  enum class Activity { kNone, kBeating, kFinished } activity = Activity::kNone;
  pid_t owner = 0;     // 0: the rank has not connected
  uint32_t dumps = 0;  // how many stacks the rank has printed
  int64_t step = 0;
  int64_t progress_ns = 0;       // of the last progress, on CLOCK_MONOTONIC
  int64_t meeting_since_ns = 0;  // 0: the rank does not wait for ranks to arrive
  int32_t meeting_size = 0;      // for how many ranks the rank waits, itself included
  pid_t waiting_thread = 0;
  int64_t waiting_since_ns = 0;  // 0: the rank waits in no collective
  std::string where;             // the collective in which the rank waits, without control characters
};

// The launcher's side of the shared memory into which its ranks write heartbeats. Owns the memory.
class HeartbeatBoard {
 public:
  // Throws Error if the kernel does not provide a memory file that can be sealed, or if there is no memory.
  explicit HeartbeatBoard(int slots);
  ~HeartbeatBoard();
  HeartbeatBoard(const HeartbeatBoard&) = delete;

  // Returns the descriptor that ranks inherit. exec() closes it, except in a process to which spawn() passes it on.
  int fd() const { return fd_.get(); }
  int slots() const { return slots_; }
  HeartbeatState read(int local_rank) const;
  // Tells all ranks how the job has failed on another host. Only the first call has an effect.
  void tell(std::string_view news);
  // Returns whether any rank has reported a step.
  bool any_step() const;

 private:
  UniqueFd fd_;
  int slots_;
  void* board_ = nullptr;
};

}  // namespace zeroshard
