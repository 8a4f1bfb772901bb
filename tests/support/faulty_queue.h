#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "file/block_queue.h"
#include "file/direct_buffer.h"

namespace zeroshard::testing {

// What happens to requests of a queue. It outlives the queue, so that tests can change it and look at it.
struct QueueFaults {
  int64_t nth = 0;                             // the request with this number fails, the first is 1; 0: none
  int error = 0;                               // with this errno; 0: it moves a part of its bytes alone
  bool sticky = false;                         // so do all later ones
  bool all_short = false;                      // requests move a part of their bytes, until that is a page
  bool hold_writes = false;                    // what was written is not told for now
  std::map<uint64_t, BlockRequest> under_way;  // by tag: started, and not told to be done
  int64_t requests = 0, failed = 0;
  int64_t reads = 0;      // started
  int64_t conflicts = 0;  // started beside one whose memory or place in the file is the same, of which one writes it
  int64_t writes_under_way = 0;  // started, and not told to be done
};

// Hands requests on to another queue, except those that are to fail.
class FaultyQueue final : public BlockQueue {
 public:
  FaultyQueue(std::unique_ptr<BlockQueue> queue, QueueFaults& faults) : queue_(std::move(queue)), faults_(faults) {}

  std::string_view name() const override { return queue_->name(); }

  void start(std::span<const BlockRequest> requests) override {
    std::vector<BlockRequest> handed_on;
    for (BlockRequest request : requests) {
      const bool writes = request.kind == BlockRequest::Kind::kWrite;
      ++faults_.requests;
      ++(writes ? faults_.writes_under_way : faults_.reads);
      for (const auto& [tag, other] : faults_.under_way) faults_.conflicts += conflict(request, other) ? 1 : 0;
      faults_.under_way[request.tag] = request;
      const bool hit =
          faults_.nth > 0 && (faults_.requests == faults_.nth || (faults_.sticky && faults_.requests > faults_.nth));
      if (hit) ++faults_.failed;
      if (hit && faults_.error != 0) {
        failed_.push_back({request.tag, -faults_.error});
        continue;
      }
      if (hit || faults_.all_short)
        request.bytes = std::max(request.bytes / 2 / kDirectAlignment, int64_t{1}) * kDirectAlignment;
      handed_on.push_back(request);
    }
    handed_on_ += handed_on.size();
    queue_->start(handed_on);
  }

  int collect(bool wait, std::vector<BlockResult>& results) override {
    const size_t before = results.size();
    results.insert(results.end(), failed_.begin(), failed_.end());
    failed_.clear();
    while (true) {
      std::vector<BlockResult> done;
      const int waited = queue_->collect(wait && results.size() == before && handed_on_ > 0, done);
      if (waited < 0) return waited;
      handed_on_ -= done.size();
      for (const BlockResult& result : done) (is_write(result.tag) ? written_ : results).push_back(result);
      if (!faults_.hold_writes) {
        results.insert(results.end(), written_.begin(), written_.end());
        written_.clear();
      }
      if (!wait || results.size() > before) break;
    }
    for (size_t i = before; i < results.size(); ++i) {
      faults_.writes_under_way -= is_write(results[i].tag) ? 1 : 0;
      faults_.under_way.erase(results[i].tag);
    }
    return 0;
  }

 private:
  bool is_write(uint64_t tag) const { return faults_.under_way.at(tag).kind == BlockRequest::Kind::kWrite; }
  // Reads write to memory, writes to the file.
  static bool conflict(const BlockRequest& a, const BlockRequest& b) {
    using Kind = BlockRequest::Kind;
    const bool same_memory = a.data < b.data + b.bytes && b.data < a.data + a.bytes;
    const bool same_place = a.file == b.file && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
    return (same_memory && (a.kind == Kind::kRead || b.kind == Kind::kRead)) ||
           (same_place && (a.kind == Kind::kWrite || b.kind == Kind::kWrite));
  }

  std::unique_ptr<BlockQueue> queue_;
  QueueFaults& faults_;
  std::vector<BlockResult> failed_, written_;
  size_t handed_on_ = 0;
};

}  // namespace zeroshard::testing
