#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/peer_watch.h"
#include "zeroshard/meeting.h"
#include "zeroshard/rank_observer.h"

namespace zeroshard {

// While it lives, the observer knows that this rank waits for all to come.
class ObservedMeeting {
 public:
  ObservedMeeting(std::shared_ptr<RankObserver> observer, int world_size) : observer_(std::move(observer)) {
    observer_->meeting_began(world_size);
  }
  ~ObservedMeeting() { observer_->meeting_ended(); }
  ObservedMeeting(const ObservedMeeting&) = delete;

 private:
  std::shared_ptr<RankObserver> observer_;
};

struct Meeting::State {
  using Clock = std::chrono::steady_clock;

  NoteBoard board;
  int rank, world_size;
  int64_t timeout_ms;
  std::string purpose;
  std::string meetings;  // prefix of the keys of all meetings
  std::string previous;  // of those of the meeting before; "": there was none
  std::string prefix;    // of this meeting's
  int64_t number = 0;    // from 1
  Clock::time_point start, last_look;
  std::vector<std::string> hosts;     // of ranks that are known to have come; else ""
  std::vector<ProcessId> processes;   // of those of them that run on this host
  std::vector<std::string> purposes;  // of ranks that are known to have come
  PeerWatch watch;
  bool complete = false;
  bool retried = false;  // once complete
  bool out_of_step = false;
  bool connected = false;  // all are
  bool over = false;       // the board says so
  bool left = false;
  std::string earlier = {};  // if this rank arrived too late for a meeting: why the latest such meeting ended
  std::optional<ObservedMeeting> sign;
};

}  // namespace zeroshard
