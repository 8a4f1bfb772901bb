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
// communicators of the same ranks. A rank that has waited for long writes its latest calls to a store, and compares
// them with the calls that other ranks have written. This costs nothing as long as no rank waits for long. One thread
// of a rank calls all collectives of the rank's communicators. Another thread, which watches the rank's device, may
// call look(), hear(), tell_failure() and behind() at the same time.
class Divergence {
 public:
  // If `store` is null, no difference is ever found. Error messages name ranks by their numbers in `numbers`.
  Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNumbers numbers = {});

  // Returns the generation. It is a part of the keys of this Divergence, so that they differ from the keys of earlier
  // Divergences over the same store. At first, it is the count of Divergences that this rank has created over the
  // store. If one rank alone failed to connect and tries again, its count is higher than those of the other ranks.
  // Therefore all ranks must pass the highest generation of any rank to agree() before the first look(). The store has
  // no keys of this generation yet.
  int64_t generation() const { return generation_; }
  void agree(int64_t largest) { generation_ = largest; }

  // Returns the number of a new communicator. All ranks must create communicators in the same order.
  size_t add_communicator();
  // Says that this rank has called `op`. `hash` is the hash of this rank's history in the communicator, including this
  // call.
  void note(size_t communicator, const Op& op, uint64_t hash);
  // Publishes what this rank has called in `communicator`, and compares it with what the other ranks have published.
  // `waiting` is the call in which this rank's thread is blocked, or null. (A rank whose device waits is not blocked.)
  // If `asks` is true, requests the other ranks to publish, too.
  //
  // If this rank and another have called different collectives in `communicator`, returns a text that names the first
  // such call of both. If two ranks wait in different communicators, each for a call that the other has not made,
  // returns a text that names both calls. Otherwise, or if the store cannot be reached, returns nothing. If the store
  // does not answer within a fifth of a second, returns nothing, and the next look() waits for the same answer. A rank
  // that finds a difference returns only when all ranks have found one, but after three seconds at the latest. Without
  // this wait, the rank that serves the store might end before the other ranks have read the store.
  std::optional<std::string> look(size_t communicator, const Op* waiting, bool asks = true);

  // The news that hear() has read from the store.
  struct News {
    // Whether a rank, which may be this one, has called look() with `asks`, or tell_failure(), since the last hear().
    // If so, this rank should publish its calls.
    bool asked = false;
    std::string failure;  // why the communicators of a rank failed; "": no such news
  };
  // Reads the news from the store. Returns empty news if the store does not answer within a fifth of a second. After an
  // error of the store, always returns empty news.
  News hear();
  // Tells the other ranks why this rank's communicators failed, if the store can be reached and no rank has told a
  // reason before.
  void tell_failure(const std::string& why);
  // Returns the other ranks that are not known to have made call number `seq` in `communicator`. Each comes with the
  // number of its last known call, or with 0 if none is known.
  std::vector<std::pair<int, uint64_t>> behind(size_t communicator, uint64_t seq) const;

 private:
  struct Call {
    uint64_t seq = 0, hash = 0;
    Op op;
  };
  struct Communicator {
    std::array<Call, 64> calls{};  // the latest calls, at index seq modulo the size
    uint64_t last = 0, told = 0;   // numbers of the latest call, and of the latest published call
  };
  // The collective in which a rank waits.
  struct Place {
    int rank = 0;
    size_t communicator = 0;
    uint64_t seq = 0;
    std::vector<uint64_t> last;  // the number of the rank's last call in each communicator
    std::string call;

    // Returns whether `other` has not made the call in which this rank waits.
    bool waits_for(const Place& other) const { return other.last.at(communicator) < seq; }
  };
  // A conversation with the store, on a thread of its own.
  class Talk {
   public:
    // Calls `body` on a new thread. Returns null if no thread could be started.
    static std::shared_ptr<Talk> start(std::function<void(Talk&)> body);
    bool wait_for(std::chrono::milliseconds patience);  // returns whether the conversation has ended

    // The texts of table() and of Place that other ranks have published. The caller may read the public members only
    // after wait_for() has returned true.
    std::vector<std::pair<int, std::string>> tables, places;  // rank, text
    size_t communicator = 0;                                  // the communicator of `tables`
    News news;
    int64_t asked = 0;    // how often ranks have asked the others to publish so far
    bool broken = false;  // whether the conversation ended with an error of the store

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
  int64_t generation_ = 0;    // see generation()
  mutable std::mutex mutex_;  // protects communicators_ and known_
  std::vector<Communicator> communicators_;
  // For a communicator and another rank, the number of the last call of the other rank that this rank has read in the
  // store.
  std::map<std::pair<size_t, int>, uint64_t> known_;
  std::mutex looking_;              // held during look() and hear(); protects the members below
  std::shared_ptr<Talk> exchange_;  // the running conversation of look()
  std::shared_ptr<Talk> inquiry_;   // the running conversation of hear()
  int64_t heard_ = 0;               // the value of Talk::asked at the last hear()
};

}  // namespace zeroshard
