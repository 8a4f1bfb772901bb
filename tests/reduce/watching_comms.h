#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "support/test_comms.h"

namespace zeroshard {

// A transport without shared memory: an exchange is an all-to-all into scratch, and an input may change once it was
// sent.
class ScratchComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  bool exchange_needs_scratch() const override { return world_size() > 1; }
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override {
    if (!exchange_needs_scratch()) return inner().exchange(full, scratch, tag);
    EXPECT_EQ(scratch.numel, full.numel);
    return std::make_unique<Copied>(inner().all_to_all(scratch, sent(full), tag), scratch, world_size());
  }
  std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) override {
    return inner().reduce_scatter(out, sent(full), tag);
  }

 private:
  class Copied final : public Exchange {
   public:
    Copied(std::unique_ptr<Work> work, Span scratch, int world_size) : work_(std::move(work)), dtype_(scratch.dtype) {
      for (int rank = 0; rank < world_size; ++rank) {
        pieces_.push_back(static_cast<char*>(scratch.data) + rank * scratch.bytes() / world_size);
      }
    }
    void wait() override { work_->wait(); }
    std::span<const void* const> pieces() const override { return pieces_; }
    DType dtype() const override { return dtype_; }
    void release() override {}
    void drain() override {}

   private:
    std::unique_ptr<Work> work_;
    std::vector<const void*> pieces_;
    DType dtype_;
  };
  ConstSpan sent(ConstSpan input) {
    const char* const data = static_cast<const char*>(input.data);
    return {sent_.emplace_back(data, data + input.bytes()).data(), input.numel, input.dtype};
  }
  void before(OpKind, int64_t, std::string_view) override {}

  std::deque<std::vector<char>> sent_;
};

// Checks at every exchange that what peers may still read of earlier ones has not changed.
class WatchingComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override {
    for (const auto& [id, input] : inputs_) input.check(rank(), world_size());
    const char* const data = static_cast<const char*>(full.data);
    inputs_[next_] = {data, {data, data + full.bytes()}};
    return std::make_unique<Watched>(inner().exchange(full, scratch, tag), *this, next_++);
  }

 private:
  struct Input {
    const char* data;
    std::vector<char> copy;
    // A rank may write over its own piece once it has summed it.
    void check(int rank, int world_size) const {
      const size_t size = copy.size() / size_t(world_size);
      for (size_t peer = 0; peer < size_t(world_size); ++peer) {
        if (int(peer) == rank) continue;
        EXPECT_EQ(std::memcmp(data + peer * size, copy.data() + peer * size, size), 0) << "the piece of rank " << peer;
      }
    }
  };
  class Watched final : public Exchange {
   public:
    Watched(std::unique_ptr<Exchange> exchange, WatchingComm& comm, int id)
        : exchange_(std::move(exchange)), comm_(comm), id_(id) {}
    void wait() override { exchange_->wait(); }
    std::span<const void* const> pieces() const override { return exchange_->pieces(); }
    DType dtype() const override { return exchange_->dtype(); }
    void release() override { exchange_->release(); }
    void drain() override {
      comm_.inputs_.at(id_).check(comm_.rank(), comm_.world_size());
      exchange_->drain();
      comm_.inputs_.erase(id_);
    }

   private:
    std::unique_ptr<Exchange> exchange_;
    WatchingComm& comm_;
    int id_;
  };
  void before(OpKind, int64_t, std::string_view) override {}

  std::map<int, Input> inputs_;  // of exchanges that were not drained
  int next_ = 0;
};

}  // namespace zeroshard
