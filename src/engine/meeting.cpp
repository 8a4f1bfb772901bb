#include "zeroshard/meeting.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/meeting_state.h"

namespace zeroshard {
namespace {

using Clock = Meeting::State::Clock;
constexpr std::chrono::milliseconds kLookEvery(300);
constexpr int kCardsPerLook = 64;  // that a rank asks for while it waits: of thousands, the store has enough to do
constexpr size_t kNamedRanks = 16;
constexpr const char* kUnknownHost = "?";

int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

// torchrun keeps one store over restarts: the notes of an earlier attempt must not be found.
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

// What a rank writes when it comes: its host, process and the time at which that started.
std::string own_card() {
  const ProcessId own = this_process();
  const std::string host = this_host();
  return concat(host.empty() ? kUnknownHost : host, "\n", own.pid, "\n", own.start_time);
}

// Returns the host. Processes of others are out of sight.
std::string read_process(Meeting::State& state, size_t rank, const std::string& key) {
  std::istringstream card(state.board.read(key));
  std::string host;
  ProcessId process;
  std::getline(card, host);
  card >> process.pid >> process.start_time;
  if (!card) throw CommError(concat("rank ", rank, " runs another version of zeroshard"));
  if (host == this_host()) state.processes[rank] = process;
  return host;
}

void read_card(Meeting::State& state, size_t rank) {
  state.hosts[rank] = read_process(state, rank, key(state, concat("card/", rank)));
}

// One that has come before may die before it comes again.
bool read_previous_card(Meeting::State& state, size_t rank) {
  const std::string previous = concat(state.previous, "card/", rank);
  if (state.previous.empty() || state.processes[rank].pid != 0 || !state.board.has(previous)) return false;
  read_process(state, rank, previous);
  return true;
}

// Reads cards of ranks that have come, rank 0's first: it serves the store, and is missed most.
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

// Once one rank has waited long enough, all have: rank 0, with which the store goes, lets them learn it.
[[noreturn]] void throw_missing(const Meeting::State& state) {
  std::vector<int> came, missing;
  for (int rank = 0; rank < state.world_size; ++rank)
    (state.board.has(key(state, concat("card/", rank))) ? came : missing).push_back(rank);
  state.board.write(key(state, "late"), "");
  if (state.rank == 0 && came.size() > 1) std::this_thread::sleep_for(4 * kLookEvery);
  throw CommError(concat("rank ", state.rank, ": of ", state.world_size, " ranks, ", names_of(missing),
                         missing.size() == 1 ? " has" : " have", " not come within ",
                         static_cast<double>(state.timeout_ms) / 1000, " s (zeroshard.timeout_s); ", names_of(came),
                         " came. Look for the first error of those that did not"));
}

}  // namespace

Meeting::Meeting(NoteBoard board, int rank, int world_size, int64_t timeout_ms)
    : state_(new State{.board = std::move(board),
                       .rank = rank,
                       .world_size = world_size,
                       .timeout_ms = timeout_ms,
                       .previous = {},
                       .prefix = {},
                       .start = Clock::now(),
                       .last_look = {},
                       .hosts = std::vector<std::string>(static_cast<size_t>(world_size)),
                       .processes = std::vector<ProcessId>(static_cast<size_t>(world_size)),
                       .watch = PeerWatch({}, timeout_ms),
                       .complete = false,
                       .sign = {}}) {
  ZS_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank is ", rank, ", world_size ", world_size);
  State& state = *state_;
  state.sign.emplace();
  const std::string meetings = concat("zeroshard/meeting/", attempt(), "/");
  const int64_t number = state.board.count(concat(meetings, "rank/", rank));
  if (number > 1) state.previous = concat(meetings, number - 1, "/");
  state.prefix = concat(meetings, number, "/");
  state.board.write(key(state, concat("card/", rank)), own_card());
  if (state.board.count(key(state, "came")) == world_size) state.board.write(key(state, "all"), "");
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
    state.watch = PeerWatch(state.processes, state.timeout_ms);
    state.start = Clock::now();  // they have as long again to get connected
    state.complete = true;
    return true;
  }
  look_for_cards(state);
  if (const std::string trouble = state.watch.check_all(); !trouble.empty())
    throw CommError(concat("rank ", state.rank, ": ", trouble, " before all ranks had come"));
  if (ms_since(state.start) > state.timeout_ms || state.board.has(key(state, "late"))) throw_missing(state);
  return false;
}

void Meeting::check(std::string_view what) {
  State& state = *state_;
  if (const std::string trouble = state.watch.check_all(); !trouble.empty())
    throw CommError(concat("rank ", state.rank, ": ", trouble, " while ranks were connected (", what, ")"));
  if (ms_since(state.start) > state.timeout_ms)
    throw CommError(concat("rank ", state.rank, ": all ", state.world_size,
                           " ranks came, but they were not connected (", what, ") within ",
                           static_cast<double>(state.timeout_ms) / 1000,
                           " s (zeroshard.timeout_s): look for the first error of the others, and at the network"));
}

void Meeting::explain(std::string_view error) {
  State& state = *state_;
  // The connections of a process that dies break before it is gone.
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (const std::string trouble = state.watch.check_all(); !trouble.empty())
      throw CommError(concat("rank ", state.rank, ": ", trouble, ": ", error));
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
  }
  throw CommError(concat("rank ", state.rank, ": ranks cannot be connected: ", error));
}

void Meeting::end() {
  state_->sign.reset();
}

}  // namespace zeroshard
