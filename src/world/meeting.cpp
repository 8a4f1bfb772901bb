#include "zeroshard/meeting.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "world/meeting_state.h"

namespace zeroshard {
namespace {

using Clock = Meeting::State::Clock;
constexpr std::chrono::milliseconds kLookEvery(300), kFarewell(3000);
// The largest number of cards (see own_card()) that a waiting rank looks for at a time. If thousands of ranks wait,
// looking for more would burden the store behind the board.
constexpr int kCardsPerLook = 64;
constexpr size_t kNamedRanks = 16;
constexpr const char* kUnknownHost = "?";
constexpr const char *kOver = "over", *kOutOfStep = "out_of_step";

int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

// Returns how often torchrun has restarted the ranks ("0" without torchrun). This is a part of the notes' keys.
// torchrun keeps the store when it restarts the ranks, and notes of an earlier attempt must not be taken for those of
// this one.
std::string attempt() {
  const char* const count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count != nullptr ? count : "0";
}

std::string key(const Meeting::State& state, std::string_view what) {
  return concat(state.prefix, what);
}

std::string names_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kNamedRanks); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kNamedRanks ? concat(text, " and ", ranks.size() - kNamedRanks, " more") : text;
}

// Returns this rank's card, the note that a rank writes when it arrives. The card has the rank's host, the pid and the
// start time of its process, and its purpose.
std::string own_card(const std::string& purpose) {
  const ProcessId own = this_process();
  const std::string host = this_host();
  return concat(host.empty() ? kUnknownHost : host, "\n", own.pid, "\n", own.start_time, "\n", purpose);
}

// Reads the card of `rank` at `key` and returns the rank's host. Records the rank's purpose in `state`. Also records
// the rank's process, but only if the process runs on this host, because processes of other hosts cannot be watched.
// Throws CommError if another version of zeroshard wrote the card.
std::string read_process(Meeting::State& state, size_t rank, const std::string& key) {
  std::istringstream card(state.board.read(key));
  std::string host;
  ProcessId process;
  std::getline(card, host);
  card >> process.pid >> process.start_time;
  if (!card) throw CommError(concat("rank ", rank, " runs another version of zeroshard"));
  std::getline(card >> std::ws, state.purposes[rank]);
  if (host == this_host()) state.processes[rank] = process;
  return host;
}

void read_card(Meeting::State& state, size_t rank) {
  state.hosts[rank] = read_process(state, rank, key(state, concat("card/", rank)));
}

// Reads the card that `rank` wrote for the previous meeting, so that its process can be watched in case it dies before
// it comes to this meeting. Returns true if the card was read. Does nothing and returns false if the rank's process is
// known already, or if there is no such card.
bool read_previous_card(Meeting::State& state, size_t rank) {
  const std::string previous = concat(state.previous, "card/", rank);
  if (state.previous.empty() || state.processes[rank].pid != 0 || !state.board.has(previous)) return false;
  read_process(state, rank, previous);
  return true;
}

// Looks for the cards of ranks whose card for this meeting was not read yet. Looks for at most kCardsPerLook of them,
// in order of the ranks. So rank 0 comes first, which serves the store that all others need. If a rank has not written
// a card for this meeting, reads the one that it wrote for the previous meeting, if there is one. From then on, watches
// the processes of this host that the cards name.
void look_for_cards(Meeting::State& state) {
  const size_t count = state.hosts.size();
  int asked = 0;
  bool found = false;
  for (size_t rank = 0; rank < count && asked < kCardsPerLook; ++rank) {
    if (!state.hosts[rank].empty()) continue;
    ++asked;
    if (state.board.has(key(state, concat("card/", rank)))) {
      read_card(state, rank);
      found = true;
    } else {
      found = read_previous_card(state, rank) || found;
    }
  }
  if (found) state.watch = PeerWatch(state.processes, state.timeout_ms);
}

// Writes a note that some meeting has failed (see retried()). Then writes a note that this meeting is over, with the
// number of this rank and the reason.
void mark_over(const Meeting::State& state, std::string_view reason) {
  state.board.write(concat(state.meetings, "retried"), "");
  state.board.write(key(state, kOver), concat(state.rank, "\n", reason));
}

// Returns why the meeting is over if another rank has written that it is. Returns "" if it is not over, or if the note
// is this rank's own.
std::string note_of_over(const Meeting::State& state) {
  if (!state.board.has(key(state, kOver))) return {};
  std::istringstream note(state.board.read(key(state, kOver)));
  std::string who, reason;
  std::getline(note, who);
  std::getline(note, reason, '\0');
  if (who == concat(state.rank)) return {};
  return concat("rank ", who, " left before all ranks were connected (", reason, ")");
}

// Returns "" if note_of_over() returns "". Otherwise returns that text, followed by advice. In this case also records
// in `state` that the meeting is over, and whether it failed because ranks came for different purposes.
std::string why_over(Meeting::State& state) {
  const std::string note = note_of_over(state);
  if (note.empty()) return {};
  state.over = true;
  state.sign.reset();
  state.out_of_step = state.board.has(key(state, kOutOfStep));
  return concat(note, ". To try again, every rank has to");
}

std::string with_earlier(const Meeting::State& state, std::string_view text) {
  return state.earlier.empty() ? std::string(text) : concat(text, "; before this rank came, ", state.earlier);
}

// Writes that this rank knows that the meeting is over.
void mark_left(const Meeting::State& state) {
  state.board.write(key(state, concat("left/", state.rank)), "");
}

// Waits until all ranks that came to this meeting, or to the previous one, have written that they know that this
// meeting is over. Only rank 0 calls this function, because the store can end with rank 0, and then the others could no
// longer read why the meeting is over. Does not wait for a rank that has died, nor for a rank in rank 0's own process.
// Waits at most kFarewell in all.
void await_others(Meeting::State& state) {
  const Clock::time_point end = Clock::now() + kFarewell;
  const int32_t own = this_process().pid;
  for (size_t rank = 1; rank < state.hosts.size(); ++rank) {
    const std::string card = concat("card/", rank);
    for (const std::string& prefix : {state.prefix, state.previous}) {
      if (!state.hosts[rank].empty() || prefix.empty() || !state.board.has(concat(prefix, card))) continue;
      state.hosts[rank] = read_process(state, rank, concat(prefix, card));
    }
    const ProcessId& process = state.processes[rank];
    const bool has_come = !state.hosts[rank].empty() && process.pid != own;
    while (has_come && !state.board.has(key(state, concat("left/", rank))) && Clock::now() < end) {
      if (process.pid != 0 && state_of(process) == ProcessState::kDead) break;
      check_interrupt();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

// Throws CommError if another rank has written that the meeting is over.
void check_over(Meeting::State& state) {
  if (const std::string why = why_over(state); !why.empty()) throw CommError(concat("rank ", state.rank, ": ", why));
}

// Returns false if the process of rank 0, which serves the store, is stopped (by SIGSTOP). A request to the store would
// then get no answer, so the caller makes none. Returns true if that process has died, because a request then fails
// immediately, and if the process is unknown. The watch notices a process that stays stopped for too long.
bool store_runs(const Meeting::State& state) {
  return state_of(state.processes[0]) != ProcessState::kStopped;
}

// Throws CommError with `text`, which says that a rank has died. If the store still answers, and another rank has
// written why the meeting is over, throws CommError with that reason instead, because it is more useful.
[[noreturn]] void throw_death(Meeting::State& state, const std::string& text) {
  try {
    if (store_runs(state)) check_over(state);
  } catch (const CommError&) {
    throw;
  } catch (...) {  // the store is gone
  }
  throw CommError(with_earlier(state, text));
}

// If ranks are missing, writes the notes that make all other ranks throw, and throws CommError. So all ranks throw when
// the first of them has waited long enough. Returns if the last rank has arrived after all.
void throw_missing(Meeting::State& state) {
  std::vector<int> came, missing;
  for (int rank = 0; rank < state.world_size; ++rank)
    (state.board.has(key(state, concat("card/", rank))) ? came : missing).push_back(rank);
  if (missing.empty()) return;
  const std::string text =
      concat("of ", state.world_size, " ranks, ", names_of(missing), missing.size() == 1 ? " has" : " have",
             " not come within ", static_cast<double>(state.timeout_ms) / 1000, " s (zeroshard.timeout_s); ",
             names_of(came), " came. Look for the first error of those that did not");
  state.board.write(key(state, "late"), "");
  mark_over(state, text);
  state.over = true;
  state.sign.reset();
  throw CommError(concat("rank ", state.rank, ": ", with_earlier(state, text)));
}

// Throws CommError if ranks came for different purposes. This happens if their configurations differ, or after a try
// that failed on some ranks alone, because these ranks start over while the others go on to the next purpose.
void check_purposes(Meeting::State& state) {
  for (size_t rank = 0; rank < state.purposes.size(); ++rank) {
    if (state.purposes[rank] == state.purpose) continue;
    state.out_of_step = true;
    state.board.write(key(state, kOutOfStep), "");
    throw CommError(concat("rank ", state.rank, " is to connect ", state.purpose, ", but rank ", rank,
                           " is to connect ", state.purposes[rank],
                           ": an earlier try has failed on some ranks alone, or their configurations differ. Try again "
                           "on every rank, with the same configuration"));
  }
}

}  // namespace

Meeting::Meeting(NoteBoard board, int rank, int world_size, int64_t timeout_ms, std::string purpose,
                 std::shared_ptr<RankObserver> observer)
    : state_(new State{.board = std::move(board),
                       .rank = rank,
                       .world_size = world_size,
                       .timeout_ms = timeout_ms,
                       .purpose = std::move(purpose),
                       .meetings = concat("zeroshard/meeting/", attempt(), "/"),
                       .previous = {},
                       .prefix = {},
                       .start = Clock::now(),
                       .last_look = {},
                       .hosts = std::vector<std::string>(static_cast<size_t>(world_size)),
                       .processes = std::vector<ProcessId>(static_cast<size_t>(world_size)),
                       .purposes = std::vector<std::string>(static_cast<size_t>(world_size)),
                       .watch = PeerWatch({}, timeout_ms),
                       .sign = {}}) {
  ZS_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank is ", rank, ", world_size ", world_size);
  State& state = *state_;
  if (observer) state.sign.emplace(std::move(observer), world_size);
  while (true) {
    state.number = state.board.count(concat(state.meetings, "rank/", rank));
    state.prefix = concat(state.meetings, state.number, "/");
    if (!state.board.has(key(state, kOver))) break;
    state.earlier = note_of_over(state);
    mark_left(state);
  }
  if (state.number > 1) state.previous = concat(state.meetings, state.number - 1, "/");
  try {
    state.board.write(key(state, concat("card/", rank)), own_card(state.purpose));
    if (state.board.count(key(state, "came")) == world_size) state.board.write(key(state, "all"), "");
  } catch (...) {  // such as Ctrl-C
    leave("it was interrupted while it came");
    throw;
  }
}

Meeting::~Meeting() = default;

bool Meeting::all_here() {
  State& state = *state_;
  if (state.complete) return true;
  const bool all = state.board.has(key(state, "all"));
  if (!all && Clock::now() - state.last_look < kLookEvery) return false;
  state.last_look = Clock::now();
  if (all) {
    for (size_t rank = 0; rank < state.hosts.size(); ++rank)
      if (state.hosts[rank].empty()) read_card(state, rank);
    check_purposes(state);
    check_over(state);
    state.watch = PeerWatch(state.processes, state.timeout_ms);
    state.start = Clock::now();  // ranks have as much time to connect as they had to arrive
    state.retried = state.board.has(concat(state.meetings, "retried"));
    state.complete = true;
    return true;
  }
  look_for_cards(state);
  if (const std::string trouble = state.watch.check_all(); !trouble.empty())
    throw_death(state, concat("rank ", state.rank, ": ", trouble, " before all ranks had come"));
  if (ms_since(state.start) > state.timeout_ms || state.board.has(key(state, "late"))) throw_missing(state);
  check_over(state);
  return false;
}

void Meeting::check(std::string_view what) {
  State& state = *state_;
  if (const std::string trouble = state.watch.check_all(); !trouble.empty())
    throw_death(state, concat("rank ", state.rank, ": ", trouble, " while ranks were connected (", what, ")"));
  if (ms_since(state.start) > state.timeout_ms)
    throw CommError(concat("rank ", state.rank, ": all ", state.world_size,
                           " ranks came, but they were not connected (", what, ") within ",
                           static_cast<double>(state.timeout_ms) / 1000,
                           " s (zeroshard.timeout_s): look for the first error of the others, and at the network"));
  if (Clock::now() - state.last_look >= kLookEvery && store_runs(state)) {
    state.last_look = Clock::now();
    check_over(state);
  }
}

void Meeting::explain(std::string_view error) {
  State& state = *state_;
  // Looks repeatedly, because the connections of a dying process break before the process is gone.
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (const std::string trouble = state.watch.check_all(); !trouble.empty())
      throw CommError(concat("rank ", state.rank, ": ", with_earlier(state, trouble), ": ", error));
    try {
      if (const std::string why = why_over(state); !why.empty())
        throw CommError(concat("rank ", state.rank, ": ", why, ": ", error));
    } catch (const CommError&) {
      throw;
    } catch (...) {  // the board is gone
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
  }
  throw CommError(concat("rank ", state.rank, ": ", with_earlier(state, "ranks cannot be connected"), ": ", error));
}

void Meeting::end() {
  state_->connected = true;
  state_->sign.reset();
}

void Meeting::leave(std::string_view reason) noexcept {
  State& state = *state_;
  state.sign.reset();
  if (state.connected || std::exchange(state.left, true)) return;
  try {
    if (!std::exchange(state.over, true)) mark_over(state, reason);
    mark_left(state);
    if (state.rank == 0) await_others(state);
  } catch (...) {  // the board is gone and the meeting with it, or Ctrl-C ended the wait
  }
}

int64_t Meeting::number() const {
  return state_->number;
}
bool Meeting::retried() const {
  return state_->retried;
}
bool Meeting::out_of_step() const {
  return state_->out_of_step;
}

}  // namespace zeroshard
