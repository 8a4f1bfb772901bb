#include "comm/direct_core.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/interrupt.h"
#include "comm/futex.h"
#include "comm/wait_graph.h"

namespace zeroshard {
namespace {

constexpr int64_t kPollMs = 100;
// If there is a core for each rank, a rank that waits goes to sleep late. It first spins kSpins times. Then it yields
// for kSpinTime, because the peer might need this core. kSpinTime is long, because waking a sleeper takes long on
// machines whose idle cores halt. On such a virtual machine, two ranks with one core each trained a model of 64 small
// layers. A step took 137 to 145 ms with a kSpinTime of 1 ms, 143 to 167 ms with 0.1 ms, and 231 to 255 ms without
// spinning. One process without zeroshard took 177 ms.
constexpr int kSpins = 200;
constexpr std::chrono::microseconds kSpinTime(1000);

// While an object lives, all ranks can see that `own` waits for `peer`, and `peer` wakes `own`.
class Waiting {
 public:
  Waiting(RankControl& own, RankControl& peer, const Awaited& awaited) : own_(own), peer_(peer) {
    peer_.waiters.fetch_add(1);
    own_.awaited.store(awaited);
  }
  ~Waiting() {
    own_.awaited.store(std::nullopt);
    peer_.waiters.fetch_sub(1);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  RankControl& own_;
  RankControl& peer_;
};

}  // namespace

DirectCore::DirectCore(std::shared_ptr<DirectMemory> memory, PeerWatch watch, int rank, const CommOptions& options)
    : memory_(std::move(memory)),
      control_(memory_->control()),
      watch_(std::move(watch)),
      options_(options),
      rank_(rank),
      world_size_(control_.world_size()),
      spins_(control_.world_size() <= online_cores()) {
  if (options_.wait_graph) options_.wait_graph->add(memory_);
}

void DirectCore::post(Op& op, const void* input, int64_t input_bytes) {
  throw_if_failed();
  op.seq = seq_ + 1;
  await_slot(op);
  if (input_bytes > 0) {
    std::optional<PeerAddress> address;
    while (!(address = memory_->publish(input, input_bytes, op.seq))) {
      const uint64_t oldest = memory_->oldest_staged();
      if (oldest == 0 || !control_.rank(rank_).has_finished(oldest))
        fail(concat("rank ", number_of(rank_), ": ", op.text(), " needs a copy of ", input_bytes,
                    " bytes, and the staging area of ", options_.staging_bytes,
                    " bytes is full of collectives not yet waited for: use memory from allocate()"));
      for (int peer = 0; peer < world_size_; ++peer) await(op, {peer, Awaited::Progress::kFinished, oldest});
    }
    op.input = *address;
  }
  seq_ = op.seq;
  RankControl& own = control_.rank(rank_);
  own.ops[op.seq % kRing].store(op);
  own.posted.store(op.seq, std::memory_order_release);
  control_.tell_waiters(rank_);
}

void DirectCore::await_slot(const Op& mine) {
  if (mine.seq <= kRing) return;
  const uint64_t previous = mine.seq - kRing;
  RankControl& own = control_.rank(rank_);
  // Completes the reads of half of the outstanding collectives in one go, so that ranks wait for one another now, and
  // not at each of many later collectives.
  if (!own.has_finished(previous)) read_until(previous + kRing / 2);
  if (!own.has_finished(previous)) {
    const Op op = own.ops[previous % kRing].load();
    fail(concat("rank ", number_of(rank_), ": ", kRing, " collectives are outstanding; the oldest, #", previous, " ",
                op.text(), ", was never waited for (or, an exchange, never released)"));
  }
  for (int peer = 0; peer < world_size_; ++peer)
    if (peer != rank_) await(mine, {peer, Awaited::Progress::kFinished, previous});
}

Op DirectCore::await_posted(int peer, const Op& mine) {
  await(mine, {peer, Awaited::Progress::kPosted, mine.seq});
  const Op theirs = control_.rank(peer).ops[mine.seq % kRing].load();
  if (theirs.matches(mine)) return theirs;
  const bool first = peer < rank_;
  const Op& a = first ? theirs : mine;
  const Op& b = first ? mine : theirs;
  fail(concat("ranks disagree: rank ", number_of(std::min(peer, rank_)), " called ", a.text(), " as collective #",
              mine.seq, ", rank ", number_of(std::max(peer, rank_)), " called ", b.text()));
}

void DirectCore::finish(uint64_t seq) {
  if (!process_.is_own()) throw_if_failed();
  control_.rank(rank_).finished_at(seq).store(seq, std::memory_order_release);
  control_.tell_waiters(rank_);
}

void DirectCore::await_finished_by_all(const Op& mine) {
  throw_if_failed();
  for (int peer = 0; peer < world_size_; ++peer)
    if (peer != rank_) await(mine, {peer, Awaited::Progress::kFinished, mine.seq});
}

void DirectCore::synchronise(const Op& mine) {
  read_until(mine.seq);
  finish(mine.seq);
  await_finished_by_all(mine);
  memory_->sweep();
}

void DirectCore::read_until(uint64_t seq) {
  // read_all() removes the reader from readers_.
  while (!readers_.empty() && readers_.front()->seq() < seq) readers_.front()->read_all();
}

bool DirectCore::spin(const RankControl& peer, const Awaited& awaited) const {
  if (peer.has_reached(awaited)) return true;
  if (!spins_) return false;
  for (int i = 0; i < kSpins; ++i) {
    cpu_relax();
    if (peer.has_reached(awaited)) return true;
  }
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    ::sched_yield();
    if (peer.has_reached(awaited)) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void DirectCore::await(const Op& mine, const Awaited& awaited) {
  if (spin(control_.rank(awaited.peer), awaited)) return;
  // The wait needs `awaited.peer` alone, but the whole collective needs all ranks. If ranks share cores, it is best to
  // sleep until the last rank has arrived, because a rank that wakes earlier takes a core and its caches from a rank
  // that still works.
  while (!spins_) {
    const int last = find_last(awaited);
    if (last == awaited.peer) break;
    sleep_until(mine, {last, awaited.progress, awaited.seq});
    if (control_.rank(awaited.peer).has_reached(awaited)) return;
  }
  sleep_until(mine, awaited);
}

// Among the other ranks that have not made the progress of `awaited`, returns the rank that has posted the fewest
// collectives. If several have posted equally few, prefers `awaited.peer`.
int DirectCore::find_last(const Awaited& awaited) {
  int last = awaited.peer;
  uint64_t least = control_.rank(last).posted.load(std::memory_order_relaxed);
  for (int peer = 0; peer < world_size_; ++peer) {
    const RankControl& control = control_.rank(peer);
    const uint64_t posted = control.posted.load(std::memory_order_relaxed);
    if (peer == rank_ || posted >= least || control.has_reached(awaited)) continue;
    last = peer;
    least = posted;
  }
  return last;
}

void DirectCore::sleep_until(const Op& mine, const Awaited& awaited) {
  const int peer = awaited.peer;
  RankControl& other = control_.rank(peer);
  if (other.has_reached(awaited)) return;
  const Waiting waiting(control_.rank(rank_), other, awaited);
  LongWait wait(options_.wait_listener);
  int64_t waited_ms = 0;
  auto last = std::chrono::steady_clock::now();
  while (true) {
    const uint32_t events = other.events.load();
    if (other.has_reached(awaited)) return;
    throw_if_failed();
    const bool left = other.left.load(std::memory_order_acquire) != 0;
    const std::optional<std::string> trouble = left ? std::nullopt : watch_.check(peer);
    if (left || trouble) {
      if (other.has_reached(awaited)) return;  // this progress was the peer's last action
      fail((left ? watch_.name(peer) + " left the group" : *trouble) + waiting_text(mine, peer));
    }
    if (waited_ms >= options_.timeout_ms)
      fail(concat(watch_.name(peer), " made no progress for ", waited_ms, " ms") + waiting_text(mine, peer));
    if (waited_ms >= kPollMs) {
      fail_in_a_cycle();
      heed_interrupt(mine);
      wait.lasts([&] { return concat("#", mine.seq, " ", mine.text(), ", for ", watch_.name(peer)); });
    }
    futex_wait(other.events, events, std::min(kPollMs, options_.timeout_ms));
    const auto now = std::chrono::steady_clock::now();
    // If more than 2 * kPollMs have passed, this process itself was stopped, so the excess does not count against the
    // peer.
    waited_ms +=
        std::min<int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now - last).count(), 2 * kPollMs);
    last = now;
  }
}

void DirectCore::heed_interrupt(const Op& mine) {
  try {
    check_interrupt();
  } catch (const std::exception&) {
    const std::string reason = concat("rank ", number_of(rank_), " was interrupted while it waited in collective #",
                                      mine.seq, " ", mine.text());
    abort_all(reason);
    throw;
  }
}

void DirectCore::fail_in_a_cycle() {
  if (!options_.wait_graph) return;
  const std::optional<std::string> cycle = options_.wait_graph->find_cycle(rank_);
  if (!cycle) return;
  fail(*cycle);
}

std::string DirectCore::waiting_text(const Op& mine, int peer) {
  return concat("; it had reached ", control_.rank(peer).progress(), "; rank ", number_of(rank_),
                " waited for it in collective #", mine.seq, " ", mine.text());
}

void DirectCore::throw_if_failed() {
  if (!process_.is_own()) throw CommError(process_.refusal(number_of(rank_), "communicator"));
  if (failure_.empty()) {
    if (const std::optional<std::string> reason = control_.aborted()) failure_ = *reason;
  }
  if (!failure_.empty()) throw_failure();
}

void DirectCore::fail(const std::string& message) {
  abort_all(message);
  // Throws the text of the first failure, so that all ranks throw the same text. Another rank might have failed first.
  failure_ = control_.aborted().value_or(message);
  throw_failure();
}

void DirectCore::throw_failure() {
  if (options_.failure) options_.failure->set(failure_);
  throw CommError(failure_);
}

// Aborts all communicators of the wait graph, because this thread must not wait in one communicator for a peer that is
// gone in another.
void DirectCore::abort_all(std::string_view reason) noexcept {
  abort(reason);
  if (options_.wait_graph) options_.wait_graph->abort(rank_, reason);
}

void DirectCore::abort(std::string_view reason) noexcept {
  if (!process_.is_own()) return;
  control_.abort(number_of(rank_), reason);
}

void DirectCore::leave() noexcept {
  if (!process_.is_own()) return;  // a forked child destroys its copy, but the rank itself continues
  RankControl& own = control_.rank(rank_);
  own.left.store(1, std::memory_order_release);
  own.notify();
}

}  // namespace zeroshard
