#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

// Hears how this rank gets on, for a supervisor that looks for hung ranks. May be called by several threads at a time.
class RankObserver {
 public:
  virtual ~RankObserver() = default;
  // An engine has finished step `step`.
  virtual void step_finished(int64_t step) noexcept = 0;
  // It has ended: no step is to be expected.
  virtual void engine_ended() noexcept = 0;
  // This thread waits for other ranks from here on: `where` names the collective, its tag and the rank that is waited
  // for.
  virtual void waiting(std::string_view where) noexcept = 0;
  virtual void done_waiting() noexcept = 0;
  // How the job has failed on another host, if the supervisor has heard of it: the text names the rank or the host.
  virtual std::string failure_elsewhere() { return {}; }
  // This rank waits for all of `world_size` ranks to come, until all are connected or it gives up.
  virtual void meeting_began(int world_size) noexcept = 0;
  virtual void meeting_ended() noexcept = 0;
};

}  // namespace zeroshard
