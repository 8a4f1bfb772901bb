#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/comm_options.h"
#include "comm/op.h"
#include "comm/peer_watch.h"

namespace zeroshard {

class C10dCore;
class Divergence;

// A Comm over any c10d process group. On CUDA, wait() makes the current stream wait for the collective, and only
// barrier() and await_device() block the host. An all_reduce of at most 64 KiB adds in the order of
// reduce_in_rank_order(), and a larger one adds in the backend's order.
//
// Ranks that call different collectives on the CPU find the difference in the next all_reduce of at most 64 KiB, or
// after a rank has waited for a second. On a device, ranks find the difference when they compare history(), and the
// DeviceWatch looks for it, too. The backend might fail with its own message before ranks find the difference.
//
// With NCCL, abort() makes the collectives of peers fail immediately. Gloo does not tell peers, so they notice the
// abort when this process ends. On a device, the peers also hear of the abort through host(), if that is shared memory,
// and through the DeviceWatch.
class C10dComm : public Comm {
 public:
  // A null `group` means a world of one rank. `watch` watches the peers on this host. `divergence` is passed to
  // C10dCore. `host` becomes Comm::host(), and must not be null for a device.
  C10dComm(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device, PeerWatch watch,
           const CommOptions& options = {}, std::shared_ptr<Divergence> divergence = nullptr,
           std::unique_ptr<Comm> host = nullptr);
  ~C10dComm() override;
  C10dComm(const C10dComm&) = delete;
  C10dComm& operator=(const C10dComm&) = delete;

  int rank() const override;
  int world_size() const override;
  std::string_view transport() const override { return transport_; }
  Comm& host() override { return host_ ? *host_ : *this; }

  std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) override;
  std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) override;
  std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) override;
  std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                     std::string_view tag) override;
  std::unique_ptr<Work> all_reduce(Span data, ReduceOp op, std::string_view tag) override;
  std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) override;
  void barrier(std::string_view tag) override;
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override;
  bool exchange_needs_scratch() const override;
  std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) override;
  bool still_writes() const override;
  std::optional<int64_t> history() const override;
  void report_difference(std::string_view tag) override;
  void await_device(std::string_view tag) override;
  void check() override;
  void abort(std::string_view reason) noexcept override;

 protected:
  const std::shared_ptr<C10dCore>& core() const { return core_; }
  virtual c10::intrusive_ptr<c10d::Work> start_all_gather(const Span& full, const ConstSpan& shard, const Op& op);
  virtual c10::intrusive_ptr<c10d::Work> start_broadcast(const at::Tensor& bytes, const Op& op);

 private:
  at::Tensor bytes_of(const ConstSpan& span) const;
  at::Tensor values_of(const ConstSpan& span) const;
  std::unique_ptr<Work> local_copy(Span to, const ConstSpan& from);
  std::unique_ptr<Work> reduce_scatter_by_all_reduce(Span out, const ConstSpan& full, Op op);
  std::unique_ptr<Work> broadcast_by_copy(Span data, Op op);
  std::unique_ptr<Work> all_reduce_by_gather(Span data, ReduceOp reduce_op, std::string_view tag);

  std::shared_ptr<C10dCore> core_;
  std::string transport_;
  std::unique_ptr<Comm> host_;  // null: this communicator is its own host()
};

}  // namespace zeroshard
