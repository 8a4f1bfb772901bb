#pragma once
#include <memory>
#include <vector>

#include "comm/direct_core.h"

// The Works of DirectComm. Each completes a collective that was posted before.
namespace zeroshard {

// A collective in which a rank reads the inputs of its peers, and does not wait until they have read the rank's own
// input. If wait() was not called, a later barrier, all_reduce, broadcast or allocate completes the collective first,
// and so does any later collective that needs its slot (DirectCore::post()).
class ReadingWork : public Work, private DirectCore::Reader {
 public:
  ReadingWork(std::shared_ptr<DirectCore> core, const Op& op);
  ~ReadingWork() override;
  ReadingWork(const ReadingWork&) = delete;
  ReadingWork& operator=(const ReadingWork&) = delete;
  void wait() final;
  void drain() final;

 protected:
  virtual void read_peers() = 0;
  DirectCore& core() { return *core_; }
  const Op& op() const { return op_; }
  // Waits until `rank` has posted its input, and returns the input. Returns null if `is_empty`. Without this argument,
  // returns null if the Op has no elements. For this rank, returns `own` without a wait.
  const std::byte* input_of(int rank, const void* own);
  const std::byte* input_of(int rank, const void* own, bool is_empty);

 private:
  uint64_t seq() const final { return op_.seq; }
  void read_all() final;

  std::shared_ptr<DirectCore> core_;
  Op op_;
  bool done_ = false;
};

class GatherWork final : public ReadingWork {
 public:
  GatherWork(std::shared_ptr<DirectCore> core, const Op& op, Span full, ConstSpan shard)
      : ReadingWork(std::move(core), op), full_(full), shard_(shard) {}

 private:
  void read_peers() override;
  Span full_;
  ConstSpan shard_;
};

class ReduceScatterWork final : public ReadingWork {
 public:
  ReduceScatterWork(std::shared_ptr<DirectCore> core, const Op& op, Span out, ConstSpan full)
      : ReadingWork(std::move(core), op), out_(out), full_(full) {}

 private:
  void read_peers() override;
  Span out_;
  ConstSpan full_;
};

class AllToAllWork final : public ReadingWork {
 public:
  AllToAllWork(std::shared_ptr<DirectCore> core, const Op& op, Span out, ConstSpan in)
      : ReadingWork(std::move(core), op), out_(out), in_(in) {}

 private:
  void read_peers() override;
  Span out_;
  ConstSpan in_;
};

class AllToAllVWork final : public ReadingWork {
 public:
  AllToAllVWork(std::shared_ptr<DirectCore> core, const Op& op, Span out, ConstSpan in, std::vector<int64_t> counts)
      : ReadingWork(std::move(core), op), out_(out), in_(in), counts_(std::move(counts)) {}

 private:
  void read_peers() override;
  Span out_;
  ConstSpan in_;
  std::vector<int64_t> counts_;
};

// AllReduceWork and BroadcastWork synchronise all ranks.
class AllReduceWork final : public Work {
 public:
  AllReduceWork(std::shared_ptr<DirectCore> core, const Op& op, Span data)
      : core_(std::move(core)), op_(op), data_(data) {}
  void wait() override;

 private:
  std::shared_ptr<DirectCore> core_;
  Op op_;
  Span data_;
  bool done_ = false;
};

class BroadcastWork final : public Work {
 public:
  BroadcastWork(std::shared_ptr<DirectCore> core, const Op& op, Span data)
      : core_(std::move(core)), op_(op), data_(data) {}
  void wait() override;

 private:
  std::shared_ptr<DirectCore> core_;
  Op op_;
  Span data_;
  bool done_ = false;
};

class DirectExchange final : public Exchange {
 public:
  // Each piece begins `offset` bytes after the start of a rank's input.
  DirectExchange(std::shared_ptr<DirectCore> core, const Op& op, ConstSpan full, int64_t offset)
      : core_(std::move(core)), op_(op), full_(full), offset_(offset) {}
  void wait() override;
  std::span<const void* const> pieces() const override { return pieces_; }
  DType dtype() const override { return full_.dtype; }
  void release() override;
  void drain() override;

 private:
  enum class State : uint8_t { kPosted, kReadable, kReleased, kDrained };

  std::shared_ptr<DirectCore> core_;
  Op op_;
  ConstSpan full_;
  int64_t offset_;
  std::vector<const void*> pieces_;
  State state_ = State::kPosted;
};

}  // namespace zeroshard
