#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/peer_watch.h"
#include "launch/heartbeat.h"
#include "zeroshard/meeting.h"

namespace zeroshard {

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
  std::string earlier = {};  // why the latest meeting was over to which this rank came too late, if it did to one
  std::optional<MeetingSign> sign;
};

}  // namespace zeroshard
