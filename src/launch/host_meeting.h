#pragma once
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launch/host_peer.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// What the launchers of a job's hosts know once all have met.
struct HostMeeting {
  std::vector<HostPeer> peers;  // of node 0: all others, else node 0
  int store_port = 0;           // of rank 0's store
  std::string interface;        // the network interface of this host that leads to the others
  UniqueFd listener;            // of node 0, which holds the port
};

// The launcher of node 0 listens at `port` of every interface, or of loopback alone if options.master_addr is that. The
// others connect to it, and learn `store_port` of node 0. Returns once all have come. Throws ValueError when they were
// started with options that do not fit together, Error when the port is taken, is another program's, or when some have
// not come within ten minutes. It says in the log for which it waits, if that takes long.
HostMeeting meet_hosts(const LaunchOptions& options, int port, int store_port);

}  // namespace zeroshard
