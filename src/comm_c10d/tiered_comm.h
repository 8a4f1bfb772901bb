#pragma once
#include <memory>

#include "comm_c10d/c10d_comm.h"
#include "comm_c10d/tiers.h"

namespace zeroshard {

// A C10dComm over several hosts. Gathers and broadcasts use Tiers, and so do exchanges if sums_on_hosts() is true. Thus
// their bytes cross the network once for each host. allocate() uses Tiers, too, so that the ranks of a host can read
// the memory. All other collectives are small or rare, and use the process group.
class TieredComm final : public C10dComm {
 public:
  TieredComm(std::unique_ptr<Tiers> tiers, c10::intrusive_ptr<c10d::ProcessGroup> group, PeerWatch watch,
             const CommOptions& options, std::shared_ptr<Divergence> divergence = nullptr);
  ~TieredComm() override;
  TieredComm(const TieredComm&) = delete;
  TieredComm& operator=(const TieredComm&) = delete;

  std::string_view transport() const override { return transport_; }
  bool still_writes() const override { return C10dComm::still_writes() || tiers_->has_failed(); }
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override;
  std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) override;

 private:
  c10::intrusive_ptr<c10d::Work> start_all_gather(const Span& full, const ConstSpan& shard, const Op& op) override;
  c10::intrusive_ptr<c10d::Work> start_broadcast(const at::Tensor& bytes, const Op& op) override;

  std::unique_ptr<Tiers> tiers_;
  std::string transport_;
};

}  // namespace zeroshard
