#include "comm_c10d/group_beside.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/text_hash.h"
#include "comm_c10d/gloo_group.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
constexpr std::chrono::milliseconds kNap(5), kLookEvery(100), kReadEvery(500);
// The most missing cards that a rank requests at a time. More would burden the store in worlds of thousands of ranks.
constexpr size_t kAskedAtOnce = 64;
constexpr std::string_view kLeft = "left ";

std::string card_key(size_t rank) {
  return concat("zeroshard/beside/card/", rank);
}

// Note [Names of groups beside]
// Each rank has a card, which is an entry in the store. A rank counts its own tries, and writes the number of its try
// on its card. The number alone cannot name the new group, because a rank that has failed alone has another number than
// the other ranks. Therefore the name contains a hash of all cards. If a peer starts again while this rank connects,
// the peer's card changes, and this rank connects with the new name. A rank might first find the card of a peer's
// earlier try. Such a card does not count if it says that the peer has left, or if it is from a process of this host
// that is dead. The rank then waits for the peer's next card.
class Cards {
 public:
  // Writes the card of this rank. Error messages name ranks by their numbers in `numbers`.
  Cards(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNumbers numbers)
      : store_(std::move(store)),
        rank_(size_t(rank)),
        numbers_(numbers),
        texts_(size_t(world_size)),
        processes_(size_t(world_size)) {
    const std::string host = this_host();
    const ProcessId own = this_process();
    const int64_t number = store_->add(concat("zeroshard/beside/try/", rank), 1);
    store_->set(card_key(rank_),
                concat(number, ' ', own.pid, ' ', own.start_time, ' ', host.empty() ? std::string("?") : host));
  }

  // A rank has arrived when this function has read a card of the rank that counts (see the Note above). Reads the cards
  // of up to kAskedAtOnce ranks that have not arrived yet, or all cards if `again` is true. Returns whether it has read
  // a new card that counts. Throws CommError if a rank that had arrived has left, or if a card has an unknown format.
  bool read(bool again) {
    bool is_new = false;
    size_t asked = 0;
    for (size_t rank = 0; rank < texts_.size() && (again || asked < kAskedAtOnce); ++rank) {
      if (!again && !texts_[rank].empty()) continue;
      ++asked;
      if (!store_->check({card_key(rank)})) continue;
      const std::string text = store_->get_to_str(card_key(rank));
      if (text == texts_[rank]) continue;
      is_new = take(rank, text) || is_new;
    }
    return is_new;
  }
  bool all_here() const { return missing().empty(); }
  std::vector<size_t> missing() const {
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < texts_.size(); ++rank)
      if (texts_[rank].empty()) ranks.push_back(rank);
    return ranks;
  }
  // Returns the name of the try, which is equal on all ranks that have read the same cards.
  std::string name() const {
    uint64_t hash = hash_text("");
    for (const std::string& text : texts_) hash = hash_text(text + '\n', hash);
    return concat("zeroshard/beside/", hash);
  }
  const std::vector<ProcessId>& processes() const { return processes_; }

  void leave(std::string_view reason) noexcept {
    try {
      store_->set(card_key(rank_), concat(kLeft, reason));
    } catch (const std::exception&) {  // the store is gone
    }
  }

 private:
  bool take(size_t rank, const std::string& text) {
    if (text.starts_with(kLeft)) {
      if (texts_[rank].empty()) return false;
      throw CommError(concat("rank ", numbers_.of(int(rank_)), ": rank ", numbers_.of(int(rank)),
                             " left before all ranks were connected (", text.substr(kLeft.size()),
                             "). To try again, every rank has to"));
    }
    std::istringstream card(text);
    int64_t number = 0;
    ProcessId process;
    std::string host;
    card >> number >> process.pid >> process.start_time >> host;
    if (!card) throw CommError(concat("rank ", numbers_.of(int(rank)), " runs another version of zeroshard"));
    const bool is_here = host == this_host();
    if (is_here && state_of(process) == ProcessState::kDead) return false;
    texts_[rank] = text;
    processes_[rank] = is_here ? process : ProcessId{};
    return true;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  size_t rank_;
  RankNumbers numbers_;
  std::vector<std::string> texts_;  // the last card of each rank that counts; "": the rank has not arrived
  std::vector<ProcessId> processes_;
};

std::string reason_of(const std::exception& error) {
  const auto* const c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
}

class Beside {
 public:
  Beside(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, const CommOptions& options)
      : store_(std::move(store)),
        options_(options),
        rank_(rank),
        world_size_(world_size),
        cards_(store_, rank, world_size, options.numbers),
        watch_(options.processes, options.stall_timeout_ms, nullptr, options.numbers) {}

  GroupBeside make() {
    try {
      return {wait(), cards_.processes()};
    } catch (const std::exception& error) {
      cards_.leave(reason_of(error));
      throw;
    }
  }

 private:
  Group wait() {
    LongWait wait(options_.wait_listener);
    std::future<Group> result;
    auto looked = start_, read = start_;
    while (true) {
      const auto now = Clock::now();
      if (!result.valid() || now - read > kReadEvery) {
        read = now;
        if (read_cards(/*again=*/result.valid())) result = {};  // abandons the thread that connects ranks by old cards
        if (!result.valid() && cards_.all_here())
          result = connect_gloo_group(store_, cards_.name(), rank_, world_size_, options_.timeout_ms);
      }
      if (result.valid() && result.wait_for(kNap) == std::future_status::ready) {
        if (Group group = take(result)) return group;
        continue;
      }
      if (!result.valid()) std::this_thread::sleep_for(kNap);
      if (now - looked < kLookEvery) continue;
      looked = now;
      wait.lasts([] { return std::string("the group beside the device's, for all ranks"); });
      check_interrupt();
      if (const std::string trouble = watch_.check_all(); !trouble.empty())
        throw CommError(concat("rank ", number(), ": ", trouble, " while ranks were connected"));
      check_time(now);
    }
  }

  // Reads the cards, and watches the processes that they name. Returns what Cards::read() returns.
  bool read_cards(bool again) {
    if (!cards_.read(again)) return false;
    watch_ = PeerWatch(cards_.processes(), options_.stall_timeout_ms, options_.wait_listener, options_.numbers);
    return true;
  }

  // Returns the group, or null if a rank has started again while the ranks were connected. Throws CommError if Gloo
  // could not connect the ranks for another reason.
  Group take(std::future<Group>& result) {
    try {
      return result.get();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      // Looks repeatedly, because the connections of a dying process break before the process is gone.
      for (int attempt = 0; attempt < 10; ++attempt) {
        if (read_cards(/*again=*/true)) return {};
        if (const std::string trouble = watch_.check_all(); !trouble.empty())
          throw CommError(concat("rank ", number(), ": ", trouble, " while ranks were connected: ", reason_of(error)));
        check_interrupt();
        std::this_thread::sleep_for(std::chrono::milliseconds(110));
      }
      throw CommError(concat("rank ", number(), ": cannot connect the ranks on the host: ", reason_of(error)));
    }
  }

  int number() const { return options_.numbers.of(rank_); }

  void check_time(Clock::time_point now) const {
    if (now - start_ < std::chrono::milliseconds(options_.timeout_ms)) return;
    std::string who;
    for (const size_t rank : cards_.missing())
      who += concat(who.empty() ? "missing: rank " : ", ", options_.numbers.of(int(rank)));
    throw CommError(concat("rank ", number(), ": the process group of all ranks on the CPU was not made within ",
                           double(options_.timeout_ms) / 1000, " s (zeroshard.timeout_s); ",
                           who.empty() ? std::string("all came, but were not connected") : who,
                           ". Look for the first error of the other ranks"));
  }

  c10::intrusive_ptr<c10d::Store> store_;
  const CommOptions& options_;
  int rank_, world_size_;
  Cards cards_;
  PeerWatch watch_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

GroupBeside make_group_beside(c10d::ProcessGroup& group, const CommOptions& options) {
  c10::intrusive_ptr<c10d::Store> store = group.getStore();
  if (!store) throw CommError("the process group has no store, by which ranks could meet on the host");
  try {
    return Beside(std::move(store), group.getRank(), group.getSize(), options).make();
  } catch (const c10::Error& error) {
    throw CommError(concat("rank ", options.numbers.of(group.getRank()),
                           ": the store of the process group does not answer: ", error.what_without_backtrace()));
  }
}

}  // namespace zeroshard
