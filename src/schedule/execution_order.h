#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace zeroshard {

// Records the order in which a pass needs its units, and predicts later passes from that order. A pass is the forward
// and backward of one micro-batch, or one evaluation. If a pass deviates from the prediction, nothing is predicted for
// the rest of the pass, so the remaining units are gathered on demand. The end of every pass replaces the recorded
// order by the order of that pass. A deviation that all ranks share never causes an error or a hang.
class ExecutionOrder {
 public:
  void begin_pass();
  // Says that from now on the pass needs units for backward. Only the first call in a pass counts. If backward begins
  // after another number of uses than in the recorded order, this is a deviation.
  void begin_backward();
  // Says that the pass needs `unit` now. Returns whether the pass has followed the prediction up to and including this
  // use. Returns false outside of a pass.
  bool advance(size_t unit);
  // Says that the pass needs `unit` now, and that every rank always has `unit` whole, so nobody has to gather it. Such
  // a use is never predicted, because ranks can use such units at different times. Only needed() lists it.
  void note(size_t unit);
  void end_pass();
  // Discards the current pass, or the last one if none is running. Later passes are predicted from the order that was
  // recorded before that pass.
  void forget();

  // Returns the predicted units that the pass still needs, in order. Returns none outside of a pass, after a deviation,
  // and in a pass without a recorded order.
  std::span<const size_t> upcoming() const;
  // Returns whether `unit` is predicted to be needed next. If so, the caller keeps `unit` whole after its forward. An
  // example is the last unit of a model, because its backward follows its forward.
  bool is_next(size_t unit) const;
  // Returns the units of upcoming() that are needed before `unit`. Returns none if `unit` is not among them.
  std::span<const size_t> upcoming_before(size_t unit) const;
  // Returns the units that this pass has needed so far, in order, with one entry for each use. Between passes, returns
  // the units of the last pass that was not forgotten.
  std::span<const size_t> needed() const { return in_pass_ ? needed_ : recorded_needed_; }
  // The most uses that are recorded in a pass; later uses are not predicted. The limit is needed because a program that
  // calls modules without the engine never ends a pass, so the lists would grow for ever.
  static constexpr size_t kMaxLength = size_t{1} << 16;
  bool is_recording() const { return !following_; }

 private:
  static constexpr size_t kNone = size_t(-1);

  void swap_with_recorded();

  std::vector<size_t> recorded_;                         // order of the last complete pass
  std::vector<size_t> current_;                          // order of this pass so far
  std::vector<size_t> recorded_needed_, needed_;         // the same two orders with noted units
  size_t recorded_backward_ = kNone, backward_ = kNone;  // in each order, the position at which backward began
  bool following_ = false;                               // whether this pass agrees with recorded_ so far
  bool in_pass_ = false;
  bool has_ended_ = false;  // if true, current_, needed_ and backward_ have the order recorded before the last pass
};

}  // namespace zeroshard
