#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>
#include <vector>

#include "comm/op.h"

namespace zeroshard {

// Finds out whether ranks that wait for one another have called different collectives: each writes its latest ones into
// the group's store, which they compare. Costs nothing while nobody waits for long.
class Divergence {
 public:
  // `store` may be null: then nothing is ever found.
  Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size);

  // This rank has called `op`; `hash` is that of its history up to here.
  void note(const Op& op, uint64_t hash);
  // Tells the others, and compares with those that have told. The first collective in which some rank differs from
  // this one, naming both; nothing when there is none or the store cannot be reached. A store that does not answer
  // holds it up for a fifth of a second. With a difference it returns once all ranks have found one, or after three
  // seconds: whoever goes earlier may take the store along.
  std::optional<std::string> look();

 private:
  struct Call {
    uint64_t seq = 0, hash = 0;
    Op op;
  };
  // With the store, beside the caller.
  class Talk {
   public:
    // Null: there was no thread to be had.
    static std::shared_ptr<Talk> start(std::function<void(Talk&)> body);
    bool wait_for(std::chrono::milliseconds patience);  // whether it is over

    std::vector<std::pair<int, std::string>> theirs;  // rank, table; to be read once it is over

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
  };
  void start_exchange();
  void await_others() const;
  std::string table() const;
  std::optional<std::string> compare(int peer, const std::string& theirs) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, world_size_;
  std::array<Call, 64> calls_{};    // the latest, by seq
  uint64_t last_ = 0, told_ = 0;    // seq
  std::shared_ptr<Talk> exchange_;  // under way
};

}  // namespace zeroshard
