#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/bootstrap.h"
#include "comm/comm_options.h"
#include "comm/peer_watch.h"

namespace zeroshard {

// A Bootstrap that uses only the all-gather of a process group. A call throws CommError if a rank dies or is stopped
// for too long meanwhile, or if ranks do not answer within options.timeout_ms. The error names a dead or stopped rank
// if options.processes has the process of that rank.
class C10dBootstrap final : public Bootstrap {
 public:
  // `group` must have a backend for CPU tensors, because messages are in host memory.
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
  int number_;  // the number by which error messages name this rank
  PeerWatch watch_;
};

}  // namespace zeroshard
