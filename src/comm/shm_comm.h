#pragma once
#include "comm/bootstrap.h"
#include "comm/comm_options.h"
#include "comm/direct_comm.h"

namespace zeroshard {

// A communicator for processes of one host and one pid namespace, through anonymous shared memory. It needs /proc and
// permission to open the other ranks' descriptors. Otherwise the constructor throws CommError on every rank.
class ShmComm final : public DirectComm {
 public:
  ShmComm(Bootstrap& bootstrap, const CommOptions& options = {});
};

}  // namespace zeroshard
