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
  std::string previous;  // the same of the meeting before; "": there was none
  std::string prefix;    // of this meeting's keys
  Clock::time_point start, last_look;
  std::vector<std::string> hosts;    // of ranks that are known to have come; else ""
  std::vector<ProcessId> processes;  // of those of them that run on this host
  PeerWatch watch;
  bool complete = false;
  std::optional<MeetingSign> sign;
};

}  // namespace zeroshard
