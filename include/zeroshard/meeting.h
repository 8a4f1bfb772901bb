#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "zeroshard/rank_environment.h"

namespace zeroshard {

// Where ranks leave notes for one another before they are connected: calls of a c10d store.
struct NoteBoard {
  std::function<void(const std::string& key, const std::string& note)> write;
  std::function<int64_t(const std::string& key)> count;     // adds one to a counter that begins at 0; returns it
  std::function<bool(const std::string& key)> has;          // does not wait
  std::function<std::string(const std::string& key)> read;  // of a key that is there
};

// The ranks of a run come together, before there is a process group that could tell who is missing. Until it ends they
// watch one another: of a rank of the same host that dies all learn within a second, of any other when the time is
// over. The observer, which may be null, learns that this rank waits. For one thread.
class Meeting {
 public:
  // Tells the others that this rank has come. Every rank makes equally many with a board, not counting those that a
  // rank has left: who comes again comes to the next one, as do ranks that come late. `purpose`: what they meet for, if
  // that may differ after a try that failed. Whatever the board's calls throw passes through here and through
  // all_here().
  Meeting(NoteBoard board, int rank, int world_size, int64_t timeout_ms, std::string purpose = {},
          std::shared_ptr<RankObserver> observer = launcher_observer());
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Whether all ranks have come. Throws CommError when one of them has died or left, when some have not come in time
  // (it says which did and which did not), or when they came for different things.
  bool all_here();

  // Once all are here, they get connected: throws CommError when one has died or left meanwhile, or when that takes
  // longer than all had to come. `what` names what is waited for. What the board throws passes through.
  void check(std::string_view what);
  // For an error while ranks meet or get connected, which may be that of a peer's death: throws CommError that names
  // the rank, or one that left, or else says `error`. Takes up to a second.
  [[noreturn]] void explain(std::string_view error);

  // All are connected: from here on nobody is watched.
  void end();
  // This rank gives up: the meeting is over, which the others learn at once, with `reason` unless they know another.
  // Nothing after end(). On rank 0 it returns when those that have come have left, too, or after three seconds: its
  // process may serve the board. To be called after any error, too.
  void leave(std::string_view reason) noexcept;

  int64_t number() const;
  // Once all are here: whether a meeting over this board was left before this one. The same on all ranks.
  bool retried() const;
  // Whether it failed because ranks came for different things.
  bool out_of_step() const;

  struct State;
  const State& state() const { return *state_; }  // for World

 private:
  std::unique_ptr<State> state_;
};

}  // namespace zeroshard
