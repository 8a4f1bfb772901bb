#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "zeroshard/rank_environment.h"

namespace zeroshard {

// Where ranks leave notes for one another before they are connected: the operations of a c10d store.
struct NoteBoard {
  std::function<void(const std::string& key, const std::string& note)> write;
  std::function<int64_t(const std::string& key)> count;     // adds one to a counter that begins at 0; returns its value
  std::function<bool(const std::string& key)> has;          // does not wait
  std::function<std::string(const std::string& key)> read;  // the value of a key that exists
};

// Lets the ranks of a run meet before there is a process group that could tell which rank is missing. Until it ends the
// ranks watch one another: all learn of a death on the same host within a second, and of any other death on time-out.
// The observer, which may be null, learns that this rank waits. For one thread.
class Meeting {
 public:
  // Announces that this rank has arrived. Every rank makes equally many meetings with a board, not counting those that
  // a rank has left: a rank that tries again, or arrives late, joins the next one. `purpose`: what they meet for,
  // which may differ after a try that failed. Exceptions of the board's calls pass through here and through
  // all_here().
  Meeting(NoteBoard board, int rank, int world_size, int64_t timeout_ms, std::string purpose = {},
          std::shared_ptr<RankObserver> observer = launcher_observer());
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Whether all ranks have arrived. Throws CommError when one of them has died or left, when some have not arrived in
  // time (it says which have and which have not), or when they came for different purposes.
  bool all_here();

  // Called while all ranks get connected: throws CommError when one has died or left meanwhile, or when it takes longer
  // than the time all had to arrive. `what` names what is waited for. Exceptions of the board pass through.
  void check(std::string_view what);
  // For an error while ranks meet or get connected, which a peer's death may have caused: throws CommError that names
  // that rank, or one that left, or else has the text `error`. Takes up to a second.
  [[noreturn]] void explain(std::string_view error);

  // All are connected: from here on no rank is watched.
  void end();
  // This rank gives up, and the meeting ends. The others learn it at once, with `reason` unless they know another one.
  // Does nothing after end(). On rank 0 it returns when the ranks that arrived have left, too, or after three seconds:
  // its process may serve the board. Call it after any error, too.
  void leave(std::string_view reason) noexcept;

  int64_t number() const;
  // Once all have arrived: whether an earlier meeting over this board was left. The same on all ranks.
  bool retried() const;
  // Whether it failed because ranks came for different purposes.
  bool out_of_step() const;

  struct State;
  const State& state() const { return *state_; }  // for World

 private:
  std::unique_ptr<State> state_;
};

}  // namespace zeroshard
