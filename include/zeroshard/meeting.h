#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "zeroshard/rank_environment.h"

namespace zeroshard {

// A key-value store in which ranks leave notes for one another before they are connected. Each member is an operation
// of a c10d store.
struct NoteBoard {
  std::function<void(const std::string& key, const std::string& note)> write;
  std::function<int64_t(const std::string& key)> count;     // adds 1 to a counter that begins at 0; returns the sum
  std::function<bool(const std::string& key)> has;          // returns without waiting whether the key exists
  std::function<std::string(const std::string& key)> read;  // returns the value of a key that exists
};

// Tells when all ranks of a run have arrived, and which ranks are missing, have died or have given up. It is for the
// time before there is a process group that could tell this. The ranks watch one another until the meeting ends. If a
// rank dies, the ranks of its host learn it within a second. Ranks of other hosts cannot see the death. They learn it
// when a rank on the dead rank's host leaves the meeting, or else at the time-out. The meeting tells the observer,
// which may be null, that this rank waits. Only one thread may use a meeting.
class Meeting {
 public:
  // Announces that this rank has arrived. The ranks meet if each of them makes a Meeting with the same board. They may
  // meet several times over one board, but every rank must make the same number of meetings. If a rank has left a
  // meeting, that meeting is over and does not count. A rank that tries again or arrives late skips it, and joins the
  // next meeting. `purpose` says why this rank wants to meet. Ranks can have different purposes after a failed try, or
  // if their configurations differ. In this case, all_here() fails. Exceptions of the board pass through the
  // constructor and through all_here().
  Meeting(NoteBoard board, int rank, int world_size, int64_t timeout_ms, std::string purpose = {},
          std::shared_ptr<RankObserver> observer = launcher_observer());
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Returns without waiting whether all ranks have arrived. Throws CommError if a rank has died or left, if some ranks
  // have not arrived in time (the message lists the ranks that have arrived and those that have not), or if ranks came
  // for different purposes.
  bool all_here();

  // The caller calls check() from time to time while all ranks connect. Throws CommError if a rank has died or left
  // meanwhile, or if `timeout_ms` have passed since all ranks had arrived. `what` names the event that this rank waits
  // for. Exceptions of the board pass through.
  void check(std::string_view what);
  // Throws a CommError with the text `error`, an error that occurred while ranks met or connected. The death of another
  // rank can have caused that error. So the function looks, for about a second, for a rank that died or left. If it
  // finds one, the message names that rank, too.
  [[noreturn]] void explain(std::string_view error);

  // The caller must call it when all ranks are connected. After that, the ranks do not watch one another any more.
  void end();
  // Ends the meeting because this rank gives up. The caller must call it after every error. The other ranks learn in
  // all_here() or check(), within a second, that this rank has left and the `reason`. If this rank already knew that
  // another rank has left, the others learn only of that rank. Does nothing after end(). The board can be a part of
  // rank 0's process, so rank 0 waits here until all ranks that arrived have left or died. It waits at most three
  // seconds.
  void leave(std::string_view reason) noexcept;

  int64_t number() const;  // number of this meeting; the first meeting over the board has number 1
  // Returns whether a rank left an earlier meeting over this board. The result is valid only after all ranks have
  // arrived, and is the same on all ranks.
  bool retried() const;
  // Returns whether the meeting failed because ranks came for different purposes.
  bool out_of_step() const;

  struct State;
  const State& state() const { return *state_; }  // for World

 private:
  std::unique_ptr<State> state_;
};

}  // namespace zeroshard
