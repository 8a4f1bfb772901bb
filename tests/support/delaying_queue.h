#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "file/block_queue.h"
#include "support/random.h"

namespace zeroshard::testing {

// Begins the requests of a queue late and in any order, when somebody asks for results: what is used before it was
// waited for has not arrived.
class DelayingQueue final : public BlockQueue {
 public:
  DelayingQueue(std::unique_ptr<BlockQueue> queue, uint64_t seed) : queue_(std::move(queue)), random_(seed) {}

  std::string_view name() const override { return queue_->name(); }

  void start(std::span<const BlockRequest> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
  }

  int collect(bool wait, std::vector<BlockResult>& results) override {
    std::vector<BlockRequest> begun;
    while (!held_.empty() && (random_() % 4 == 0 || (wait && running_ == 0 && begun.empty()))) {
      const size_t which = random_() % held_.size();
      begun.push_back(held_[which]);
      held_.erase(held_.begin() + std::ptrdiff_t(which));
    }
    running_ += begun.size();
    if (!begun.empty()) queue_->start(begun);
    if (running_ == 0) return 0;
    const size_t before = results.size();
    const int waited = queue_->collect(wait, results);
    running_ -= results.size() - before;
    return waited;
  }

 private:
  std::unique_ptr<BlockQueue> queue_;
  Random random_;
  std::vector<BlockRequest> held_;
  size_t running_ = 0;
};

}  // namespace zeroshard::testing
