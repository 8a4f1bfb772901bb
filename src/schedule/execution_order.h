#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace zeroshard {

// Records the order in which a pass needs its units, and predicts later passes from it. A pass is the forward and
// backward of one micro-batch, or one evaluation. If a pass deviates, the remaining units are gathered on demand and
// the order is recorded anew. A deviation never causes an error or a hang.
class ExecutionOrder {
 public:
  void begin_pass();
  // Says that from now on the pass needs its units for backward. Only the first call in a pass counts.
  void begin_backward();
  // Says that the pass needs `unit` now. Returns false if this was not predicted.
  bool advance(size_t unit);
  // Says that the pass needs `unit`, which is whole without a gather. Such a use is not predicted, because ranks may
  // differ in it.
  void note(size_t unit);
  void end_pass();
  // Discards the current pass, or the last one if none is running. The order that predicted it stays recorded.
  void forget();

  // Returns the next needed units, nearest first; empty while recording.
  std::span<const size_t> upcoming() const;
  // Returns whether `unit` is predicted to be needed next. If so, it stays whole after its forward. An example is the
  // last unit of a model, because its backward follows its forward.
  bool is_next(size_t unit) const;
  // Returns the units of upcoming() that are needed before `unit`; nothing if `unit` is not among them.
  std::span<const size_t> upcoming_before(size_t unit) const;
  // Returns the units that this pass has needed so far, in order, with one entry per use. Between passes, returns the
  // units of the last pass.
  std::span<const size_t> needed() const { return in_pass_ ? needed_ : recorded_needed_; }
  // The largest number of units recorded per pass. It is limited because a program that calls modules without the
  // engine never ends a pass.
  static constexpr size_t kMaxLength = size_t{1} << 16;
  bool is_recording() const { return !following_; }

 private:
  static constexpr size_t kNone = size_t(-1);

  void swap_with_recorded();

  std::vector<size_t> recorded_;                         // order of the last complete pass
  std::vector<size_t> current_;                          // order of this pass so far
  std::vector<size_t> recorded_needed_, needed_;         // the same including noted units
  size_t recorded_backward_ = kNone, backward_ = kNone;  // position where backward began in each
  bool following_ = false;                               // current_ is a prefix of recorded_
  bool in_pass_ = false;
  bool has_ended_ = false;  // a pass has ended, and current_ and backward_ belong to it
};

}  // namespace zeroshard
