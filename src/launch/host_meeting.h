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
  std::string interface;        // the network interface of this host that leads to the other hosts; "": unknown
  UniqueFd listener;            // set on node 0, whose launcher keeps listening, to refuse others
};

// Connects the launchers of a job's hosts. The launcher of node 0 listens at `port`: on the loopback interface if
// options.master_addr is a loopback address, and otherwise on every interface. The other launchers connect to node 0's
// launcher, and learn the `store_port` that node 0's launcher was given. Returns when all launchers have come. Throws
// ValueError if the options of the launchers do not fit together. On nodes other than 0, also throws ValueError if
// options.master_addr has no address, or if another job runs at the port. Throws Error if the port is taken, if another
// program listens there, if node 0's launcher is silent for ten seconds, or if some launchers have not come within ten
// minutes. If the wait is long, the log says which launchers are missing.
HostMeeting meet_hosts(const LaunchOptions& options, int port, int store_port);

}  // namespace zeroshard
