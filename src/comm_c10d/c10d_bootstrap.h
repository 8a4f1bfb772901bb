#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/bootstrap.h"
#include "comm/comm_options.h"
#include "comm/peer_watch.h"

namespace zeroshard {

// A Bootstrap that uses only the all-gather of a process group. If a rank dies during a call, the error names that
// rank, provided that options.processes contains it.
class C10dBootstrap final : public Bootstrap {
 public:
  // `group` must be able to move host memory.
  C10dBootstrap(c10::intrusive_ptr<c10d::ProcessGroup> group, const CommOptions& options);
  int rank() const override { return group_->getRank(); }
  int world_size() const override { return group_->getSize(); }
  std::vector<std::string> all_gather(std::string_view mine) override;

 private:
  [[noreturn]] void fail(const std::string& error);
  at::Tensor gather(const at::Tensor& mine);
  void await(c10d::Work& work);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int64_t timeout_ms_;
  int number_;  // this rank's number in messages
  PeerWatch watch_;
};

}  // namespace zeroshard
