#pragma once
#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/host_meeting.h"
#include "launch/host_peer.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// How a job ends, as the launcher of one host tells those of the others.
struct HostNews {
  enum class Kind {
    kFailed,  // `number` is the job's exit code, `text` names the rank and its host
    kSignal,  // the launcher got signal `number` first on host `text`
    kKill,    // that host kills its ranks after a second signal
  } kind = Kind::kFailed;
  int number = 0;
  std::string text;
  double age_s = 0;  // since it happened, less what the message took
};

// Keeps the launchers of a job's hosts in touch, from the meeting to the end of the job: a star around node 0, which
// passes on what it hears. A launcher that is silent for `stall_timeout_s`, or gone without a word, has failed.
class HostLink {
 public:
  HostLink(const LaunchOptions& options, HostMeeting meeting);

  int store_port() const { return meeting_.store_port; }
  // The network interface that leads to the other hosts; "": unknown.
  const std::string& interface() const { return meeting_.interface; }

  void add_to(std::vector<pollfd>& fds) const;
  // What is new. Also tells the others that this launcher lives: call it once in a second at least.
  std::vector<HostNews> look();
  void tell(const HostNews& news);
  // All ranks of this host have ended with 0.
  void tell_done();
  // Whether this launcher has to stay: node 0 does until the ranks of all hosts have ended.
  bool is_needed() const;

 private:
  void hear(HostPeer& from, const std::string& line, std::vector<HostNews>& news);
  void report_loss(HostPeer& peer, std::vector<HostNews>& news);
  void send_away();
  void pass_on(const HostPeer* from, const std::string& line);
  std::string name(const HostPeer& peer) const;

  int node_, nproc_;
  double patience_s_;  // 0: without limit
  HostMeeting meeting_;
  HostPeer::Clock::time_point told_{};
};

}  // namespace zeroshard
