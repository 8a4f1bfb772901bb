#pragma once
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/forwarding_comm.h"
#include "support/random.h"
#include "zeroshard/error.h"

// Decorators for tests.
namespace zeroshard {

// Counts calls and bytes per kind, and keeps the sequence of calls.
class RecordingComm final : public ForwardingComm {
 public:
  struct Call {
    OpKind kind;
    int64_t bytes;  // of the full (world-sized) side
    std::string tag;
    bool operator==(const Call&) const = default;
  };
  using ForwardingComm::ForwardingComm;

  const std::vector<Call>& calls() const { return calls_; }
  int64_t count(OpKind kind) const { return counts_[static_cast<size_t>(kind)]; }
  int64_t bytes(OpKind kind) const { return bytes_[static_cast<size_t>(kind)]; }
  void reset() {
    calls_.clear();
    counts_ = {};
    bytes_ = {};
  }

 private:
  void before(OpKind kind, int64_t bytes, std::string_view tag) override {
    calls_.push_back({kind, bytes, std::string(tag)});
    ++counts_[static_cast<size_t>(kind)];
    bytes_[static_cast<size_t>(kind)] += bytes;
  }

  std::vector<Call> calls_;
  std::array<int64_t, kOpKinds> counts_{}, bytes_{};
};

// Fails the n-th call (counted from 1) and every later one, and aborts the inner communicator, as a broken link would.
class FaultComm final : public ForwardingComm {
 public:
  FaultComm(Comm& inner, int64_t fail_at) : ForwardingComm(inner), fail_at_(fail_at) {}
  int64_t calls() const { return calls_; }

 private:
  void before(OpKind kind, int64_t, std::string_view tag) override {
    if (++calls_ < fail_at_) return;
    if (failure_.empty()) {
      failure_ = concat("injected fault at call ", calls_, ", ", name_of(kind), "('", tag, "') of rank ", rank());
      inner().abort(failure_);
    }
    throw CommError(failure_);
  }

  int64_t fail_at_;
  int64_t calls_ = 0;
  std::string failure_;
};

// Sleeps for a seeded random time before each call, so that ranks meet in many orders.
class DelayComm final : public ForwardingComm {
 public:
  DelayComm(Comm& inner, uint64_t seed, int max_us)
      : ForwardingComm(inner), random_(seed * 1000003 + static_cast<uint64_t>(inner.rank())), max_us_(max_us) {}

 private:
  void before(OpKind, int64_t, std::string_view) override {
    const auto us = static_cast<int64_t>(random_() % static_cast<uint64_t>(max_us_ + 1));
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }

  testing::Random random_;
  int max_us_;
};

}  // namespace zeroshard
