#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "zeroshard/rank_environment.h"

namespace zeroshard {

// A key-value store in which ranks leave notes for one another before they are connected. The members are operations of
// a c10d store.
struct NoteBoard {
  std::function<void(const std::string& key, const std::string& note)> write;
  std::function<int64_t(const std::string& key)> count;     // adds one to a counter that begins at 0; returns its value
  std::function<bool(const std::string& key)> has;          // returns at once
  std::function<std::string(const std::string& key)> read;  // the value of a key that exists
};

// Waits until all ranks of a run have arrived, before there is a process group that could tell which rank is missing.
// The ranks watch one another until the meeting ends. All ranks learn of a death on the same host within a second, and
// of any other death by the time-out. The meeting tells the observer, which may be null, that this rank waits. Only one
// thread uses a meeting.
class Meeting {
 public:
  // Announces that this rank has arrived. Every rank must make the same number of meetings with a board, not counting
  // meetings that a rank has left. A rank that tries again or arrives late joins the next meeting. `purpose` says why
  // the ranks meet; it may differ after a failed try. Exceptions of the board's calls pass through here and through
  // all_here().
  Meeting(NoteBoard board, int rank, int world_size, int64_t timeout_ms, std::string purpose = {},
          std::shared_ptr<RankObserver> observer = launcher_observer());
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Returns whether all ranks have arrived. Throws CommError if a rank has died or left, if some ranks have not arrived
  // in time (the message lists both sets), or if they came for different purposes.
  bool all_here();

  // Call it while all ranks connect. Throws CommError if a rank has died or left meanwhile, or if connecting takes
  // longer than the time that ranks had to arrive. `what` names the awaited event. Exceptions of the board pass
  // through.
  void check(std::string_view what);
  // Explains an error that occurred while ranks met or connected, because a peer's death may have caused it. Throws a
  // CommError that names a rank that died or left. If there is none, the CommError has the text `error`. Takes up to a
  // second.
  [[noreturn]] void explain(std::string_view error);

  // The caller calls it when all ranks are connected. From then on the ranks do not watch one another.
  void end();
  // Ends the meeting because this rank gives up. The other ranks learn it at once, with `reason` unless they know
  // another reason. Does nothing after end(). On rank 0 it returns when all ranks that arrived have left, or after
  // three seconds, because the process of rank 0 may serve the board. Call it after every error.
  void leave(std::string_view reason) noexcept;

  int64_t number() const;
  // After all ranks have arrived: returns whether an earlier meeting over this board was left. The same on all ranks.
  bool retried() const;
  // Returns whether the meeting failed because ranks came for different purposes.
  bool out_of_step() const;

  struct State;
  const State& state() const { return *state_; }  // for World

 private:
  std::unique_ptr<State> state_;
};

}  // namespace zeroshard
