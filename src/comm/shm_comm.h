#pragma once
#include "comm/bootstrap.h"
#include "comm/comm_options.h"
#include "comm/direct_comm.h"

namespace zeroshard {

// A communicator for processes of one host and one pid namespace, through anonymous shared memory. The ranks need /proc
// and the permission to open each other's descriptors. Without these the constructor throws CommError on every rank.
class ShmComm final : public DirectComm {
 public:
  ShmComm(Bootstrap& bootstrap, const CommOptions& options = {});
};

}  // namespace zeroshard
