#pragma once
#include "comm/comm.h"
#include "comm/op.h"

namespace zeroshard {

// Hands every call on to `inner`, which must outlive it, after telling the derived class. Base of the decorators.
class ForwardingComm : public Comm {
 public:
  explicit ForwardingComm(Comm& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::string_view transport() const override { return inner_.transport(); }
  std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) override {
    before(OpKind::kAllGather, full.bytes(), tag);
    return inner_.all_gather(full, shard, tag);
  }
  std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) override {
    before(OpKind::kReduceScatter, full.bytes(), tag);
    return inner_.reduce_scatter(out, full, tag);
  }
  std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) override {
    before(OpKind::kAllToAll, in.bytes(), tag);
    return inner_.all_to_all(out, in, tag);
  }
  std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                     std::string_view tag) override {
    before(OpKind::kAllToAllV, in.bytes(), tag);  // what this rank gives: there is no world-sized side
    return inner_.all_to_all_v(out, in, counts, tag);
  }
  std::unique_ptr<Work> all_reduce(Span data, ReduceOp op, std::string_view tag) override {
    before(OpKind::kAllReduce, data.bytes(), tag);
    return inner_.all_reduce(data, op, tag);
  }
  std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) override {
    before(OpKind::kBroadcast, data.bytes(), tag);
    return inner_.broadcast(data, root, tag);
  }
  void barrier(std::string_view tag) override {
    before(OpKind::kBarrier, 0, tag);
    inner_.barrier(tag);
  }
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override {
    before(OpKind::kExchange, full.bytes(), tag);
    return inner_.exchange(full, scratch, tag);
  }
  bool exchange_needs_scratch() const override { return inner_.exchange_needs_scratch(); }
  std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) override {
    before(OpKind::kAllocate, bytes, tag);
    return inner_.allocate(bytes, tag);
  }
  bool still_writes() const override { return inner_.still_writes(); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 protected:
  // `bytes`: of the full (world-sized) side of the operation.
  virtual void before(OpKind kind, int64_t bytes, std::string_view tag) = 0;
  Comm& inner() { return inner_; }

 private:
  Comm& inner_;
};

}  // namespace zeroshard
