#pragma once
#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/direct_core.h"

namespace zeroshard {

// A Comm for ranks that can read each other's memory. If inputs lie in memory from allocate(), a gather copies each
// byte once, and a reduction reads the pieces in place. Other inputs are copied first. An output must not overlap an
// input that peers have not read yet, except that the shard of a gather may be this rank's slice of the output.
class DirectComm : public Comm {
 public:
  DirectComm(std::shared_ptr<DirectCore> core, std::string transport);
  ~DirectComm() override;
  DirectComm(const DirectComm&) = delete;
  DirectComm& operator=(const DirectComm&) = delete;

  int rank() const override { return core_->rank(); }
  int world_size() const override { return core_->world_size(); }
  std::string_view transport() const override { return transport_; }

  std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) override;
  std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) override;
  std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) override;
  std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                     std::string_view tag) override;
  std::unique_ptr<Work> all_reduce(Span data, ReduceOp op, std::string_view tag) override;
  std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) override;
  void barrier(std::string_view tag) override;
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override;
  bool exchange_needs_scratch() const override { return false; }
  // Like exchange(), but pieces() returns the whole inputs of all ranks.
  std::unique_ptr<Exchange> share(ConstSpan mine, std::string_view tag);
  std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) override;
  void check() override { core_->throw_if_failed(); }
  // Returns why the communicator is broken, or "" if this rank knows of no failure. Any thread may call why_broken()
  // and abort().
  std::string why_broken() const { return core_->memory()->control().aborted().value_or(""); }
  void abort(std::string_view reason) noexcept override { core_->abort(reason); }

 private:
  std::shared_ptr<DirectCore> core_;
  std::string transport_;
};

}  // namespace zeroshard
