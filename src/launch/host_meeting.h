#pragma once
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launch/host_peer.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// The state of a launcher when the launchers of all hosts have met.
struct HostMeeting {
  std::vector<HostPeer> peers;  // on node 0, the launchers of all other hosts; on another node, the launcher of node 0
  int store_port = 0;           // port of rank 0's store
  std::string interface;        // the network interface of this host that leads to the other hosts
  UniqueFd listener;            // set on node 0, whose launcher keeps the port
};

// Connects the launchers of a job's hosts. The launcher of node 0 listens at `port` of every interface. If
// options.master_addr is a loopback address, it listens only on loopback. The other launchers connect to it, and learn
// its `store_port`. Returns when all launchers have come. Throws ValueError if the launchers have options that do not
// fit together. Throws Error if the port is taken or another program listens there, or if some launchers have not come
// within ten minutes. If the wait is long, the log says which launchers are missing.
HostMeeting meet_hosts(const LaunchOptions& options, int port, int store_port);

}  // namespace zeroshard
