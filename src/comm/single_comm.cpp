#include <cstdlib>
#include <new>
#include <optional>

#include "base/check.h"
#include "base/process_mark.h"
#include "comm/arguments.h"
#include "comm/copy.h"
#include "comm/local_comm.h"

namespace zeroshard {
namespace {

class DoneWork final : public Work {
 public:
  void wait() override {}
};

class SingleExchange final : public Exchange {
 public:
  explicit SingleExchange(const ConstSpan& full) : piece_{full.data}, dtype_(full.dtype) {}
  void wait() override {}
  std::span<const void* const> pieces() const override { return piece_; }
  DType dtype() const override { return dtype_; }
  void release() override {}
  void drain() override {}

 private:
  const void* piece_[1];
  DType dtype_;
};

class SingleAllocation final : public Allocation {
 public:
  explicit SingleAllocation(int64_t bytes) : bytes_(bytes) {
    const size_t size = static_cast<size_t>(bytes > 0 ? bytes : 1);
    // For large sizes, calloc() returns pages that the kernel has zeroed, and does not touch them.
    memory_ = std::calloc(size + kAlignment, 1);
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  ~SingleAllocation() override { std::free(memory_); }
  SingleAllocation(const SingleAllocation&) = delete;
  SingleAllocation& operator=(const SingleAllocation&) = delete;
  void* data() const override {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_) + kAlignment - 1) / kAlignment * kAlignment);
  }
  int64_t bytes() const override { return bytes_; }

 private:
  static constexpr size_t kAlignment = 64;
  void* memory_;
  int64_t bytes_;
};

class SingleComm final : public Comm {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string_view transport() const override { return "single"; }

  std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) override {
    throw_if_aborted();
    check_all_gather(full, shard, 1, tag);
    return copy(full, shard);
  }
  std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) override {
    throw_if_aborted();
    check_reduce_scatter(out, full, 1, tag);
    return copy(out, full);
  }
  std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) override {
    throw_if_aborted();
    check_all_to_all(out, in, 1, tag);
    return copy(out, in);
  }
  std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                     std::string_view tag) override {
    throw_if_aborted();
    check_all_to_all_v(out, in, counts, 0, 1, tag);
    return copy(out, in);
  }
  std::unique_ptr<Work> all_reduce(Span data, ReduceOp, std::string_view tag) override {
    throw_if_aborted();
    check_all_reduce(data, tag);
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) override {
    throw_if_aborted();
    check_broadcast(data, root, 1, tag);
    return std::make_unique<DoneWork>();
  }
  void barrier(std::string_view) override { throw_if_aborted(); }
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override {
    throw_if_aborted();
    check_exchange(full, scratch, false, 1, tag);
    return std::make_unique<SingleExchange>(full);
  }
  bool exchange_needs_scratch() const override { return false; }
  std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) override {
    throw_if_aborted();
    check_allocate(bytes, tag);
    return std::make_unique<SingleAllocation>(bytes);
  }
  void check() override { throw_if_aborted(); }
  void abort(std::string_view reason) noexcept override {
    if (!aborted_) aborted_.emplace(reason);
  }

 private:
  void throw_if_aborted() const {
    if (!process_.is_own()) throw CommError(process_.refusal(0, "communicator"));
    if (aborted_) throw CommError(*aborted_);
  }
  static std::unique_ptr<Work> copy(Span to, ConstSpan from) {
    if (to.data != from.data) copy_bytes(to.data, from.data, from.bytes());
    return std::make_unique<DoneWork>();
  }

  std::optional<std::string> aborted_;
  ProcessMark process_;
};

}  // namespace

std::unique_ptr<Comm> make_single_comm() {
  return std::make_unique<SingleComm>();
}

}  // namespace zeroshard
