#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "comm/bootstrap.h"
#include "comm/comm_options.h"
#include "comm/peer_watch.h"
#include "comm_c10d/tiers.h"

namespace zeroshard {

// Connects the ranks of each host through shared memory, and the ranks that have the same position on their hosts by a
// Gloo group. Each Gloo group meets in `store`, under `name` and the position. Collective for all ranks of `bootstrap`.
// If the ranks of some host cannot share memory, logs the reason and returns null on every rank of every host. Throws
// CommError if `watch` finds a rank dead or stopped, or if Gloo cannot connect the hosts. The program can interrupt the
// call.
std::unique_ptr<Tiers> make_tiers(Bootstrap& bootstrap, int ranks_per_host, c10::intrusive_ptr<c10d::Store> store,
                                  const std::string& name, PeerWatch watch, const CommOptions& options);

}  // namespace zeroshard
