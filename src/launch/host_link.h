#pragma once
#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/host_meeting.h"
#include "launch/host_peer.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// Says how a job ends. The launcher of one host sends such news to the launchers of the other hosts.
struct HostNews {
  enum class Kind {
    kFailed,  // `number` is the job's exit code, and `text` names the rank or the host that failed
    kSignal,  // the launcher on host `text` was the first to get signal `number`
    kKill,    // the host `text` kills its ranks, because its launcher got a second signal
  } kind = Kind::kFailed;
  int number = 0;
  std::string text;
  double age_s = 0;  // seconds since the event, without the time that the message took
};

// Connects the launchers of a job's hosts, from the meeting to the end of the job. The connections form a star around
// node 0, which passes on the news that it gets. A launcher counts as failed if it is silent for longer than
// LaunchOptions::stall_timeout_s, or if its connection ends before the launcher has told how its ranks ended.
class HostLink {
 public:
  HostLink(const LaunchOptions& options, HostMeeting meeting);

  int store_port() const { return meeting_.store_port; }
  // Returns the network interface that leads to the other hosts, or "" if it is unknown.
  const std::string& interface() const { return meeting_.interface; }

  void add_to(std::vector<pollfd>& fds) const;
  // Returns the news since the last call, refuses launchers that come late, and tells the other launchers that this one
  // lives. Must be called at least once a second.
  std::vector<HostNews> look();
  void tell(const HostNews& news);
  // Tells the other launchers that all ranks of this host have ended with 0.
  void tell_done();
  // Returns whether this launcher has to stay. Node 0's launcher has to stay until each other launcher has told how its
  // ranks ended, or is gone. The other launchers need not stay.
  bool is_needed() const;

 private:
  void hear(HostPeer& from, const std::string& line, std::vector<HostNews>& news);
  void report_loss(HostPeer& peer, std::vector<HostNews>& news);
  void send_away();
  void pass_on(const HostPeer* from, const std::string& line);
  std::string name(const HostPeer& peer) const;

  int node_, nproc_;
  double patience_s_;  // seconds; 0: no limit
  HostMeeting meeting_;
  HostPeer::Clock::time_point told_{};
};

}  // namespace zeroshard
