#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

namespace heartbeat {
struct Header;
struct Slot;
}  // namespace heartbeat

// Reports to `zeroshard run`, through shared memory, that this rank makes progress and where it waits. The methods use
// no network, and no system calls except for getpid, gettid and sched_yield. A method that cannot write its report
// soon, because another thread is writing one, drops the report. Any thread may call the methods. In a forked child
// they do nothing.
class Heartbeat {
 public:
  // Connects to slot LOCAL_RANK of the launcher's memory, which ZEROSHARD_HEARTBEAT_FD names, and installs the stack
  // dump of stack_dump.h. The methods of the result do nothing if there is no launcher, if the variables are invalid,
  // or if another living process already reports for this rank. Never throws.
  static Heartbeat from_environment() noexcept;

  Heartbeat() = default;  // makes an object that does nothing

  bool connected() const { return slot_ != nullptr; }

  // Reports that step `step` is done, which counts as progress.
  void beat(int64_t step) noexcept;
  // Reports that the launcher should expect no progress of this rank until its next step. Has no effect before the
  // first step.
  void finish() noexcept;
  // Reports that this thread begins to wait for other ranks, which counts as progress. `where` describes the
  // collective. The first 200 bytes of this text are kept. If several threads wait, the launcher sees the one that
  // began last.
  void waiting(std::string_view where) noexcept;
  // Reports that this thread's wait has ended, which counts as progress.
  void done_waiting() noexcept;
  // Returns how the job has failed on another host, or "" if this host's launcher has not heard of a failure.
  std::string news() const;

 private:
  bool mine() const noexcept;  // false if there is no slot, and in a forked child

  std::shared_ptr<heartbeat::Slot> slot_;  // owns the mapping, together with the handler of the stack dump
  heartbeat::Header* header_ = nullptr;    // the header in the same mapping
  pid_t pid_ = 0;
};

// While an object lives, it tells `zeroshard run` that this rank waits for `world_size` ranks to arrive. If these are
// all ranks of the job, the launcher ends the job when one of them has ended without arriving (see find_absence()). The
// object does nothing in the cases in which a Heartbeat would do nothing.
class MeetingSign {
 public:
  explicit MeetingSign(int world_size) noexcept;
  ~MeetingSign();
  MeetingSign(const MeetingSign&) = delete;

 private:
  std::shared_ptr<heartbeat::Slot> slot_;
  pid_t pid_;
};

}  // namespace zeroshard
