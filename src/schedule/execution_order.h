#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace zeroshard {

// The order in which a pass (forward and backward of one micro-batch, or one evaluation) needs its units. The first
// pass records it, and later passes are predicted from it. When a pass deviates, the rest of it runs on demand and the
// order is recorded anew: never an error, never a hang.
class ExecutionOrder {
 public:
  void begin_pass();
  // From now on the pass needs its units for backward; only the first call in a pass counts.
  void begin_backward();
  // `unit` is needed now. Returns false if that was not predicted.
  bool advance(size_t unit);
  // `unit` is needed, and is always present: ranks may differ in it, and it is not predicted.
  void note(size_t unit);
  void end_pass();
  // Discards the current or last pass; the order from which it was predicted stays recorded.
  void forget();

  // The next needed units, nearest first; empty while recording.
  std::span<const size_t> upcoming() const;
  // Whether `unit` is predicted to be needed next: then it stays whole after its forward, as does the last unit of a
  // model, whose backward follows.
  bool is_next(size_t unit) const;
  // Those of upcoming() that are needed before `unit` is; nothing when `unit` is not among them.
  std::span<const size_t> upcoming_before(size_t unit) const;
  // The units needed so far in this pass (between passes: in the last one), in order, each once per use.
  std::span<const size_t> needed() const { return in_pass_ ? needed_ : recorded_needed_; }
  // The maximum that is recorded of one pass: a program that calls modules but never the engine ends no pass.
  static constexpr size_t kMaxLength = size_t{1} << 16;
  bool is_recording() const { return !following_; }

 private:
  static constexpr size_t kNone = size_t(-1);

  void swap_with_recorded();

  std::vector<size_t> recorded_;                         // of the last complete pass
  std::vector<size_t> current_;                          // of this pass so far
  std::vector<size_t> recorded_needed_, needed_;         // with those that were noted
  size_t recorded_backward_ = kNone, backward_ = kNone;  // where backward began in each
  bool following_ = false;                               // current_ is a prefix of recorded_
  bool in_pass_ = false;
  bool has_ended_ = false;  // a pass has ended: current_ and backward_ belong to it
};

}  // namespace zeroshard
