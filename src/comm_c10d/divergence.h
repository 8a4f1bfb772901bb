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

namespace zeroshard {

// Finds out whether ranks that wait for one another have called different collectives, in one communicator or in
// several of the same ranks. Each rank writes its latest calls into a store, and the ranks compare them. Costs nothing
// unless a rank waits for long. One thread of a rank calls all collectives of its communicators; another, which watches
// the rank's device, may look at the same time.
class Divergence {
 public:
  // `store` may be null: then nothing is ever found.
  Divergence(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size);

  // How often this rank has made one over the store. Ranks that have failed to connect alone have other numbers than
  // the rest: all take the largest, under which the store has nothing yet.
  int64_t generation() const { return generation_; }
  void agree(int64_t largest) { generation_ = largest; }

  // The number of a new communicator: all ranks create communicators in the same order.
  size_t add_communicator();
  // This rank has called `op`; `hash` is that of its history in the communicator so far.
  void note(size_t communicator, const Op& op, uint64_t hash);
  // Publishes what this rank called and where it waits (null: nowhere), and compares with ranks that have published.
  // Returns the first collective of the communicator in which some rank differs from this one, naming both; or two
  // ranks that each wait in another communicator for a call that the other has not made; or nothing, also if the store
  // cannot be reached. A store that does not answer delays it by a fifth of a second. With a difference, it returns
  // when all ranks have found one, or after three seconds, because the store may end with a rank that leaves.
  // `waiting`: its thread is blocked there; a rank whose device waits is not. `asks`: the others are to publish, too.
  std::optional<std::string> look(size_t communicator, const Op* waiting, bool asks = true);

  // What ranks tell those that do not wait.
  struct News {
    bool asked = false;   // a rank has looked since the last time: others publish what they have called, too
    std::string failure;  // why a rank's communicators broke; "": none has said so
  };
  News hear();
  // This rank's communicators broke. Best effort.
  void tell_failure(const std::string& why);
  // The other ranks that are not known to have called `seq`, with the last number that is known, or 0.
  std::vector<std::pair<int, uint64_t>> behind(size_t communicator, uint64_t seq) const;

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
    News news;
    int64_t asked = 0;    // times, by all ranks
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
  int64_t generation_ = 0;    // the same store may have been used before
  mutable std::mutex mutex_;  // of the communicators, and of what is known of others
  std::vector<Communicator> communicators_;
  std::map<std::pair<size_t, int>, uint64_t> known_;  // communicator and rank: the last call that it has published
  std::mutex looking_;                                // one thread at a time; of what follows
  std::shared_ptr<Talk> exchange_;                    // under way
  std::shared_ptr<Talk> inquiry_;                     // of hear(), under way
  int64_t heard_ = 0;                                 // how often ranks had asked
};

}  // namespace zeroshard
