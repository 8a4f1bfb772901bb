#pragma once
#include "comm/bootstrap.h"
#include "comm/comm_options.h"
#include "comm/direct_comm.h"

namespace zeroshard {

// Processes of one host and one pid namespace, through anonymous shared memory. Needs /proc and permission to open the
// other ranks' descriptors; otherwise the constructor throws CommError on every rank.
class ShmComm final : public DirectComm {
 public:
  ShmComm(Bootstrap& bootstrap, const CommOptions& options = {});
};

}  // namespace zeroshard
