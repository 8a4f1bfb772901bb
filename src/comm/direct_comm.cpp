#include "comm/direct_comm.h"

#include "comm/arguments.h"
#include "comm/direct_work.h"

namespace zeroshard {
namespace {

class DirectAllocation final : public Allocation {
 public:
  DirectAllocation(std::shared_ptr<DirectMemory> memory, const SegmentGrant& grant, int64_t bytes)
      : memory_(std::move(memory)), segment_(grant.segment), data_(grant.data), bytes_(bytes) {}
  ~DirectAllocation() override { memory_->free(segment_); }
  DirectAllocation(const DirectAllocation&) = delete;
  DirectAllocation& operator=(const DirectAllocation&) = delete;
  void* data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<DirectMemory> memory_;  // shared, because an allocation can outlive its communicator
  uint64_t segment_;
  void* data_;
  int64_t bytes_;
};

}  // namespace

DirectComm::DirectComm(std::shared_ptr<DirectCore> core, std::string transport)
    : core_(std::move(core)), transport_(std::move(transport)) {}

DirectComm::~DirectComm() {
  core_->leave();
}

std::unique_ptr<Work> DirectComm::all_gather(Span full, ConstSpan shard, std::string_view tag) {
  check_all_gather(full, shard, world_size(), tag);
  Op op(OpKind::kAllGather, shard.numel, shard.dtype, tag);
  core_->post(op, shard.data, shard.bytes());
  return std::make_unique<GatherWork>(core_, op, full, shard);
}

std::unique_ptr<Work> DirectComm::reduce_scatter(Span out, ConstSpan full, std::string_view tag) {
  check_reduce_scatter(out, full, world_size(), tag);
  Op op(OpKind::kReduceScatter, full.numel, full.dtype, tag);
  core_->post(op, full.data, full.bytes());
  return std::make_unique<ReduceScatterWork>(core_, op, out, full);
}

std::unique_ptr<Work> DirectComm::all_to_all(Span out, ConstSpan in, std::string_view tag) {
  check_all_to_all(out, in, world_size(), tag);
  Op op(OpKind::kAllToAll, in.numel, in.dtype, tag);
  core_->post(op, in.data, in.bytes());
  return std::make_unique<AllToAllWork>(core_, op, out, in);
}

std::unique_ptr<Work> DirectComm::all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                               std::string_view tag) {
  check_all_to_all_v(out, in, counts, rank(), world_size(), tag);
  Op op = all_to_all_v_op(counts, in.dtype, tag);
  core_->post(op, in.data, in.bytes());
  return std::make_unique<AllToAllVWork>(core_, op, out, in, std::vector<int64_t>(counts.begin(), counts.end()));
}

std::unique_ptr<Work> DirectComm::all_reduce(Span data, ReduceOp reduce_op, std::string_view tag) {
  check_all_reduce(data, tag);
  Op op(OpKind::kAllReduce, data.numel, data.dtype, tag, static_cast<int32_t>(reduce_op));
  core_->post(op, data.data, data.bytes());
  return std::make_unique<AllReduceWork>(core_, op, data);
}

std::unique_ptr<Work> DirectComm::broadcast(Span data, int root, std::string_view tag) {
  check_broadcast(data, root, world_size(), tag);
  Op op(OpKind::kBroadcast, data.numel, data.dtype, tag, root);
  core_->post(op, data.data, rank() == root ? data.bytes() : 0);
  return std::make_unique<BroadcastWork>(core_, op, data);
}

void DirectComm::barrier(std::string_view tag) {
  Op op(OpKind::kBarrier, 0, DType::kOther1, tag);
  core_->post(op, nullptr, 0);
  for (int peer = 0; peer < world_size(); ++peer)
    if (peer != rank()) core_->await_posted(peer, op);
  core_->synchronise(op);
}

std::unique_ptr<Exchange> DirectComm::exchange(ConstSpan full, Span scratch, std::string_view tag) {
  check_exchange(full, scratch, /*needs_scratch=*/false, world_size(), tag);
  Op op(OpKind::kExchange, full.numel, full.dtype, tag);
  core_->post(op, full.data, full.bytes());
  return std::make_unique<DirectExchange>(core_, op, full, rank() * (full.bytes() / world_size()));
}

std::unique_ptr<Exchange> DirectComm::share(ConstSpan mine, std::string_view tag) {
  Op op(OpKind::kExchange, mine.numel, mine.dtype, tag);
  core_->post(op, mine.data, mine.bytes());
  return std::make_unique<DirectExchange>(core_, op, mine, 0);
}

std::unique_ptr<Allocation> DirectComm::allocate(int64_t bytes, std::string_view tag) {
  check_allocate(bytes, tag);
  core_->throw_if_failed();
  Op op(OpKind::kAllocate, bytes, DType::kOther1, tag);
  DirectMemory& memory = *core_->memory();
  std::unique_ptr<Allocation> allocation;
  SegmentGrant grant;
  try {
    grant = memory.create(bytes);
    allocation = std::make_unique<DirectAllocation>(core_->memory(), grant, bytes);
    op.input.segment = grant.segment;
    op.inode = grant.inode;
    op.fd = grant.fd;
    core_->post(op, nullptr, 0);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      const Op theirs = core_->await_posted(peer, op);
      memory.attach(peer, {theirs.input.segment, theirs.inode, static_cast<int>(theirs.fd), nullptr}, bytes);
    }
    core_->synchronise(op);
  } catch (const std::exception& error) {
    memory.attached(grant);
    core_->fail(error.what());  // throws the text of the failure that came first on any rank
  }
  memory.attached(grant);
  return allocation;
}

}  // namespace zeroshard
