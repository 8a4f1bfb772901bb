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

// Reports to `zeroshard run` that this rank makes progress, and where it waits, through shared memory. It needs no
// system call but getpid, no network and no locks. Any thread may call the methods; in a forked child they do nothing.
class Heartbeat {
 public:
  // Connects to the launcher that ZEROSHARD_HEARTBEAT_FD names, in the slot LOCAL_RANK, and installs the stack dump of
  // stack_dump.h. Without a launcher, with invalid variables, or when another living process already reports for this
  // rank, the result does nothing. Never throws.
  static Heartbeat from_environment() noexcept;

  Heartbeat() = default;  // does nothing

  bool connected() const { return slot_ != nullptr; }

  // Step `step` is done.
  void beat(int64_t step) noexcept;
  // From here on no progress is expected of this rank, until the next step.
  void finish() noexcept;
  // From here on this thread waits for other ranks: `where` names the collective and its parameter; the first 200 bytes
  // are kept. If several threads wait, the latest is shown.
  void waiting(std::string_view where) noexcept;
  // The wait has ended, which is progress too.
  void done_waiting() noexcept;
  // How the job has failed on another host, as this host's launcher has heard; "" if it has not.
  std::string news() const;

 private:
  bool mine() const noexcept;  // false in a forked child

  std::shared_ptr<heartbeat::Slot> slot_;  // keeps its mapping; the handler of the stack dump holds one as well
  heartbeat::Header* header_ = nullptr;    // of the same mapping
  pid_t pid_ = 0;
};

// While it lives, `zeroshard run` knows that this rank waits for all of `world_size` ranks to arrive. If these are all
// ranks of the job, none of them may end before that. Does nothing without a launcher, and where Heartbeat would do
// nothing.
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
