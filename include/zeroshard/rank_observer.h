#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Receives reports on the progress of this rank, for a supervisor that detects hung ranks. Several threads may call an
// observer at the same time.
class RankObserver {
 public:
  virtual ~RankObserver() = default;
  // An engine has finished step `step`.
  virtual void step_finished(int64_t step) noexcept = 0;
  // The engine has ended. The supervisor expects no more steps.
  virtual void engine_ended() noexcept = 0;
  // The calling thread starts to wait for other ranks. `where` names the collective, its tag and, if known, the awaited
  // rank.
  virtual void waiting(std::string_view where) noexcept = 0;
  virtual void done_waiting() noexcept = 0;
  // Returns how the job has failed on another host, or "" if the observer knows of no such failure. The text names the
  // rank or the host.
  virtual std::string failure_elsewhere() { return {}; }
  // This rank waits for all of `world_size` ranks to arrive. The wait ends when all are connected or when this rank
  // gives up.
  virtual void meeting_began(int world_size) noexcept = 0;
  virtual void meeting_ended() noexcept = 0;
};

}  // namespace zeroshard
