#include "comm_c10d/tiered_comm.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/host_sums.h"
#include "comm/arguments.h"
#include "comm_c10d/c10d_core.h"
#include "comm_c10d/c10d_work.h"

namespace zeroshard {
namespace {

// Memory that the ranks of this host share. As with C10dAllocation, the memory is never freed if a failed or abandoned
// collective might still write to it. The memory is not freed in a forked child either.
class TieredAllocation final : public Allocation {
 public:
  TieredAllocation(std::shared_ptr<C10dCore> core, std::unique_ptr<Allocation> memory)
      : core_(std::move(core)), memory_(std::move(memory)) {}
  ~TieredAllocation() override {
    if (core_->still_writes() || core_->is_forked()) static_cast<void>(memory_.release());
  }
  TieredAllocation(const TieredAllocation&) = delete;
  TieredAllocation& operator=(const TieredAllocation&) = delete;
  void* data() const override { return memory_->data(); }
  int64_t bytes() const override { return memory_->bytes(); }

 private:
  std::shared_ptr<C10dCore> core_;
  std::unique_ptr<Allocation> memory_;
};

}  // namespace

TieredComm::TieredComm(std::unique_ptr<Tiers> tiers, c10::intrusive_ptr<c10d::ProcessGroup> group, PeerWatch watch,
                       const CommOptions& options, std::shared_ptr<Divergence> divergence)
    : C10dComm(std::move(group), at::kCPU, std::move(watch), options, std::move(divergence)),
      tiers_(std::move(tiers)),
      transport_(concat("shm+", C10dComm::transport())) {
  core()->failure().listen(this, [this](const std::string& text) { tiers_->abort(text); });
}

TieredComm::~TieredComm() {
  if (core()->is_forked()) {
    static_cast<void>(tiers_.release());  // because the child does not have the thread of Tiers
    return;
  }
  core()->failure().leave(this);
}

std::unique_ptr<Exchange> TieredComm::exchange(ConstSpan full, Span scratch, std::string_view tag) {
  if (full.numel == 0 || !sums_on_hosts(tiers_->ranks_per_host(), full.dtype))
    return C10dComm::exchange(full, scratch, tag);
  check_exchange(full, scratch, exchange_needs_scratch(), world_size(), tag);
  core()->throw_if_failed();
  auto* const sums = static_cast<float*>(scratch.data);
  Op op(OpKind::kExchange, full.numel, full.dtype, tag);
  auto work = core()->issue(op, [&] { return tiers_->exchange(full, sums, tag); });
  std::vector<const void*> pieces;
  for (int host = 0; host < tiers_->hosts(); ++host)
    pieces.push_back(tiers_->shard_sums(full, sums) + host * (full.numel / world_size()));
  return std::make_unique<C10dExchange>(std::make_unique<C10dWork>(core(), op, std::move(work)), std::move(pieces),
                                        DType::kFloat32);
}

std::unique_ptr<Allocation> TieredComm::allocate(int64_t bytes, std::string_view tag) {
  check_allocate(bytes, tag);
  core()->throw_if_failed();
  const auto memory = std::make_shared<std::unique_ptr<Allocation>>();
  Op op(OpKind::kAllocate, bytes, DType::kOther1, tag);
  const auto work = core()->issue(op, [&] { return tiers_->allocate(bytes, tag, memory); });
  core()->complete(*work, op);
  return std::make_unique<TieredAllocation>(core(), std::move(*memory));
}

c10::intrusive_ptr<c10d::Work> TieredComm::start_all_gather(const Span& full, const ConstSpan& shard, const Op& op) {
  return tiers_->all_gather(full, shard, op.tag);
}

c10::intrusive_ptr<c10d::Work> TieredComm::start_broadcast(const at::Tensor& bytes, const Op& op) {
  return tiers_->broadcast(bytes, op.argument, op.tag);
}

}  // namespace zeroshard
