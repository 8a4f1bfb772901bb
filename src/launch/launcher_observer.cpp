#include <optional>

#include "launch/heartbeat.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/rank_observer.h"

namespace zeroshard {
namespace {

class HeartbeatObserver final : public RankObserver {
 public:
  void step_finished(int64_t step) noexcept override { heartbeat_.beat(step); }
  void engine_ended() noexcept override { heartbeat_.finish(); }
  void waiting(std::string_view where) noexcept override { heartbeat_.waiting(where); }
  void done_waiting() noexcept override { heartbeat_.done_waiting(); }
  std::string failure_elsewhere() override { return heartbeat_.news(); }
  void meeting_began(int world_size) noexcept override { meeting_.emplace(world_size); }
  void meeting_ended() noexcept override { meeting_.reset(); }

 private:
  Heartbeat heartbeat_ = Heartbeat::from_environment();
  std::optional<MeetingSign> meeting_;
};

}  // namespace

std::shared_ptr<RankObserver> launcher_observer() {
  return std::make_shared<HeartbeatObserver>();
}

}  // namespace zeroshard
