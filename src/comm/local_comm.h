#pragma once
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "comm/comm_options.h"

namespace zeroshard {

// Creates communicators for ranks that are threads of this process, for tests. Element r belongs to rank r. Peers read
// inputs in memory from allocate() in place, so ThreadSanitizer sees races.
std::vector<std::unique_ptr<Comm>> make_local_world(int world_size, const CommOptions& options = {});

// Creates the communicator of a world of one rank. The operations only copy input to output, and are complete when
// they return.
std::unique_ptr<Comm> make_single_comm();

}  // namespace zeroshard
