#pragma once
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "comm/comm_options.h"

namespace zeroshard {

// Communicators for ranks that are threads of this process, for tests: element r belongs to rank r. Peers read inputs
// in place, so ThreadSanitizer sees a race.
std::vector<std::unique_ptr<Comm>> make_local_world(int world_size, const CommOptions& options = {});

// A world of one: no operation costs more than its copies.
std::unique_ptr<Comm> make_single_comm();

}  // namespace zeroshard
