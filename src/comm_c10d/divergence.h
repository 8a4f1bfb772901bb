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
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>
#include <vector>

#include "comm/op.h"

namespace zeroshard {

// Finds out whether ranks that wait for one another have called different collectives, in one communicator or in
// several of the same ranks. Each rank writes its latest calls into a store, and the ranks compare them. Costs nothing
// unless a rank waits for long. One thread of a rank calls all collectives of its communicators.
class Divergence {
 public:
  // `store` may be null: then nothing is ever found. Collective to construct.
  Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size);

  // The number of a new communicator: all ranks create communicators in the same order.
  size_t add_communicator();
  // This rank has called `op`; `hash` is that of its history in the communicator so far.
  void note(size_t communicator, const Op& op, uint64_t hash);
  // Publishes what this rank called and where it waits (null: nowhere), and compares with ranks that have published.
  // Returns the first collective of the communicator in which some rank differs from this one, naming both; or two
  // ranks that each wait in another communicator for a call that the other has not made; or nothing, also if the store
  // cannot be reached. A store that does not answer delays it by a fifth of a second. With a difference, it returns
  // when all ranks have found one, or after three seconds, because the store may end with a rank that leaves.
  std::optional<std::string> look(size_t communicator, const Op* waiting);

 private:
  struct Call {
    uint64_t seq = 0, hash = 0;
    Op op;
  };
  struct Communicator {
    std::array<Call, 64> calls{};  // the latest, by seq
    uint64_t last = 0, told = 0;   // seq
  };
  // The place where a rank waits.
  struct Place {
    int rank = 0;
    size_t communicator = 0;
    uint64_t seq = 0;
    std::vector<uint64_t> last;  // seq, by communicator
    std::string call;

    // Whether the rank waits for a call that `other`, which waits elsewhere, has not made.
    bool waits_for(const Place& other) const { return other.last.at(communicator) < seq; }
  };
  // The conversation with the store, on a thread beside the caller.
  class Talk {
   public:
    // Null: no thread could be started.
    static std::shared_ptr<Talk> start(std::function<void(Talk&)> body);
    bool wait_for(std::chrono::milliseconds patience);  // whether it has ended

    // From the ranks that have published; read it only once it has ended.
    std::vector<std::pair<int, std::string>> tables, places;  // rank, text
    size_t communicator = 0;                                  // whose tables

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
  };
  void start_exchange(size_t communicator, const std::optional<Place>& own);
  std::string key(std::string_view what, int rank) const;
  void await_others() const;
  std::string table(const Communicator& communicator) const;
  std::optional<std::string> compare(const Communicator& own, int peer, const std::string& theirs) const;
  static std::string text_of(const Place& place);
  std::optional<Place> parse_place(int rank, const std::string& text) const;
  std::optional<std::string> find_crossed(const std::optional<Place>& own, const Talk& talk) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, world_size_;
  int64_t generation_ = 0;  // the same store may have been used before
  std::vector<Communicator> communicators_;
  std::shared_ptr<Talk> exchange_;  // under way
};

}  // namespace zeroshard
