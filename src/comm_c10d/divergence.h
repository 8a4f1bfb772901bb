#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>
#include <vector>

#include "comm/op.h"
#include "comm/rank_numbers.h"

namespace zeroshard {

// Detects whether ranks that wait for one another have called different collectives, in one communicator or in several
// communicators of the same ranks. Each rank writes its latest calls to a store, and the ranks compare them. It costs
// nothing unless a rank waits for long. One thread of a rank calls all collectives of its communicators. Another
// thread, which watches the rank's device, may call look() at the same time.
class Divergence {
 public:
  // `store` may be null; then no difference is ever found. Messages give the ranks these `numbers`.
  Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNumbers numbers = {});

  // Counts the Divergences that this rank has created over the store. Ranks that failed to connect alone have other
  // counts than the other ranks. All ranks therefore agree on the largest count, for which the store has no entries
  // yet.
  int64_t generation() const { return generation_; }
  void agree(int64_t largest) { generation_ = largest; }

  // Returns the number of a new communicator. All ranks create communicators in the same order.
  size_t add_communicator();
  // This rank has called `op`. `hash` is the hash of its history in the communicator up to now.
  void note(size_t communicator, const Op& op, uint64_t hash);
  // Publishes what this rank has called and where it waits (null: nowhere), and compares with ranks that have
  // published. Returns the first collective of the communicator in which some rank differs from this one, with both
  // calls. Or returns two ranks that wait in different communicators, each for a call that the other has not made.
  // Otherwise, or if the store cannot be reached, returns nothing. A store that does not answer delays it by a fifth of
  // a second. If there is a difference, it returns when all ranks have found one or after three seconds, because the
  // store may end with a rank that leaves. `waiting` is the call in which this rank's thread is blocked; a rank whose
  // device waits is not blocked. `asks` requests the other ranks to publish, too.
  std::optional<std::string> look(size_t communicator, const Op* waiting, bool asks = true);

  // Messages of other ranks for a rank that does not wait.
  struct News {
    bool asked = false;   // a rank has called look() since the last time, so this rank should publish its calls
    std::string failure;  // why a rank's communicators failed; "": no rank has failed
  };
  News hear();
  // Tells the other ranks that this rank's communicators failed. Best effort.
  void tell_failure(const std::string& why);
  // Returns the other ranks that are not known to have called `seq`, each with its last known number, or 0.
  std::vector<std::pair<int, uint64_t>> behind(size_t communicator, uint64_t seq) const;

 private:
  struct Call {
    uint64_t seq = 0, hash = 0;
    Op op;
  };
  struct Communicator {
    std::array<Call, 64> calls{};  // the latest calls, at index seq modulo the size
    uint64_t last = 0, told = 0;   // `seq` of the latest call, and of the latest call that was published
  };
  // The collective in which a rank waits.
  struct Place {
    int rank = 0;
    size_t communicator = 0;
    uint64_t seq = 0;
    std::vector<uint64_t> last;  // by communicator: seq of the last call
    std::string call;

    // Returns whether the rank waits for a call that `other`, which waits elsewhere, has not made.
    bool waits_for(const Place& other) const { return other.last.at(communicator) < seq; }
  };
  // A conversation with the store, on its own thread.
  class Talk {
   public:
    // Returns null if no thread could be started.
    static std::shared_ptr<Talk> start(std::function<void(Talk&)> body);
    bool wait_for(std::chrono::milliseconds patience);  // returns whether it has ended

    // Texts of the ranks that have published, each with its rank. The caller may read them when wait_for() returned
    // true.
    std::vector<std::pair<int, std::string>> tables, places;  // rank, text
    size_t communicator = 0;                                  // communicator of `tables`
    News news;
    int64_t asked = 0;    // number of requests by all ranks
    bool broken = false;  // the store does not work

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
  };
  void start_exchange(size_t communicator, const std::optional<Place>& own, bool asks);
  std::string key(std::string_view what) const;
  std::string key(std::string_view what, int rank) const;
  void await_others() const;
  std::string table(const Communicator& communicator) const;
  std::optional<std::string> compare(size_t communicator, int peer, const std::string& theirs);
  static std::string text_of(const Place& place);
  std::optional<Place> parse_place(int rank, const std::string& text) const;
  std::optional<std::string> find_crossed(const std::optional<Place>& own, const Talk& talk) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, world_size_;
  RankNumbers numbers_;
  int64_t generation_ = 0;    // distinguishes earlier uses of the same store
  mutable std::mutex mutex_;  // protects the communicators and known_
  std::vector<Communicator> communicators_;
  std::map<std::pair<size_t, int>, uint64_t> known_;  // communicator and rank: the last call that it has published
  std::mutex looking_;                                // held by one thread that looks; protects the members below
  std::shared_ptr<Talk> exchange_;                    // running conversation of look()
  std::shared_ptr<Talk> inquiry_;                     // running conversation of hear()
  int64_t heard_ = 0;                                 // number of requests at the last hear()
};

}  // namespace zeroshard
