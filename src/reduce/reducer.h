#pragma once
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "reduce/grad_bucket.h"

namespace zeroshard {

// All gradient buckets of a run: decides when each is launched and finished, and lends them buffers.
//
// Buckets are launched in one order on all ranks, whatever order their gradients arrive in. In the first backward pass
// it is the reverse of that in which rank 0's forward pass needed the units, as autograd goes; then the order in which
// rank 0 completed the buckets in that pass. A parameter that gets no gradient on some rank therefore delays its bucket
// there, but never makes ranks disagree. Reductions run while backward goes on: a bucket is finished when a later one
// is launched, or when backward ends.
class Reducer {
 public:
  struct Options : ReduceOptions {
    bool overlap = true;
    int max_slots = 2;  // per size class, at stages 2 and 3
  };

  // Collective (allocates). The layouts, `comm` and `ledger` outlive the reducer.
  Reducer(std::span<const UnitLayout* const> units, Options options, Comm& comm, Ledger& ledger);

  // Before the first gradient of a backward pass: `needed` are the units of the forward pass, in order, one as often as
  // it was needed. Collective in the first pass with `sync`. May be left out on all ranks: the first pass then goes
  // from the last unit to the first.
  // Over the communicator of the gathers: ranks whose forward passes differ meet there.
  void begin_backward(std::span<const size_t> needed, bool sync, Comm& gather_comm);
  // A gradient has been accumulated: `param` indexes UnitLayout::params. With `sync` false it only joins this rank's
  // own sum. Throws ValueError for a sparse gradient.
  void add(size_t unit, size_t param, const at::Tensor& grad, bool sync);
  // No more gradients of this unit will come in this backward pass. `skipped`: none has come, or may come later.
  void flush(size_t unit, bool skipped = false);
  // Launches and finishes every bucket once.
  void launch_all(bool sync);
  // By bucket, whether gradients came after its launch. Each needs a second one on all ranks when some rank has such.
  std::vector<int64_t> late() const;
  void launch_again(const std::vector<int64_t>& late);
  // Launches and finishes everything; afterwards the reduced gradients can be read.
  void end_backward(bool sync);
  // Drops all gradients since the last step; the pass, if one ran, is as if it had not been. After launch_all().
  void discard();
  // Stage 0: every rank gets every rank's reduced gradients. A no-op at other stages.
  void gather_reduced();
  void end_step();

  // The bucket of a unit's group; null when the group is frozen.
  const GradBucket* bucket(size_t unit, size_t group) const;
  // Squares of this rank's shards, over all units. The norm of gradients that were multiplied by the loss scale.
  ExactSum squares() const;

 private:
  enum class Basis { kUnits, kForward, kBackward };  // what the order of launches was taken from
  struct Place {                                     // of a parameter
    int bucket = -1;
    size_t index = 0;
  };
  void make_buckets(std::span<const UnitLayout* const> units);
  GradBucket& filling(size_t bucket);
  SlotRing::Slot* acquire_slot(int64_t bytes);
  void mark_ready(size_t bucket);
  void reset_pass();
  void launch_ready();
  void launch(size_t bucket);
  void finish_oldest();
  void take_order_of_rank_0(const std::vector<size_t>& own, Comm& comm, std::string_view tag);

  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> memory_;   // full buffers (stages 0 and 1), reduced gradients
  std::optional<SlotRing> ring_;     // stages 2 and 3
  std::vector<FlatBuffer> scratch_;  // for transports that copy pieces
  std::vector<GradBucket> buckets_;
  std::vector<std::vector<int>> bucket_of_;   // [unit][group]
  std::vector<std::vector<Place>> place_of_;  // [unit][param]
  std::vector<size_t> order_;                 // of launches, the same on all ranks
  std::vector<size_t> completed_;             // in the first backward pass, in the order of completion
  Basis basis_ = Basis::kUnits;
  size_t launches_ = 0;
  std::vector<bool> ready_;
  // Whether a bucket was ready when its unit was done, in this pass (unset: it is not done) and in the last.
  std::vector<std::optional<bool>> done_with_unit_;
  std::vector<bool> was_done_with_unit_;
  size_t next_ = 0;  // position in order_
  std::deque<size_t> in_flight_;
  std::map<int64_t, std::deque<size_t>> draining_;  // by bytes of the slot that peers may still read
};

}  // namespace zeroshard
