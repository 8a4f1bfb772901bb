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

// Tells the observer that this rank waits until all ranks are connected. The wait begins with the constructor and ends
// with the destructor.
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
  std::string previous;  // prefix of the keys of the previous meeting; "": there was none
  std::string prefix;    // prefix of the keys of this meeting
  int64_t number = 0;    // counts from 1
  Clock::time_point start, last_look;
  std::vector<std::string> hosts;     // by rank: host if the rank's card was read, else ""
  std::vector<ProcessId> processes;   // by rank: process if the rank's card was read and it runs on this host
  std::vector<std::string> purposes;  // by rank: purpose if the rank's card was read
  PeerWatch watch;
  bool complete = false;
  bool retried = false;  // valid if complete
  bool out_of_step = false;
  bool connected = false;    // all ranks are connected
  bool over = false;         // this rank knows that some rank, possibly itself, has ended the meeting
  bool left = false;         // leave() was called before the ranks were connected
  std::string earlier = {};  // if this rank arrived too late for a meeting: why the latest such meeting ended
  std::optional<ObservedMeeting> sign;
};

}  // namespace zeroshard
