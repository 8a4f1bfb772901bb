#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/state_rules.h"
#include "reduce/grad_bucket.h"

namespace zeroshard {

// All gradient buckets of a run: decides when each is launched and finished, and lends them buffers.
//
// Buckets are launched in one order on all ranks, whatever order their gradients arrive in. In the first backward pass
// it is the reverse of the order in which rank 0's forward pass needed the units; afterwards it is the order in which
// rank 0 completed the buckets in that pass. A parameter that gets no gradient on some rank therefore delays its bucket
// there, but never makes ranks disagree. Reductions run while backward goes on: a bucket is finished when a later one
// is launched, or when backward ends.
//
// Note [Buckets without gradients]
// A unit's backward may give no gradients on one rank: it failed there, or this rank's forward skipped the unit's
// layers. Ranks with gradients wait for the bucket before their next gather, so this rank launches it at the same
// point: at the end of the unit at which it was ready in the previous pass; in the first pass, after as many ends as
// the unit has uses. Not earlier: later gradients would be late and need another launch on all ranks. The same is done
// where units are not sharded and no rank waits, because the terms of one launch, and so its rounding, must not depend
// on the stage. So what a rank has summed under no_sync does not go with such a launch, but with gradients, or when the
// pass ends.
class Reducer {
 public:
  struct Options : ReduceOptions {
    bool overlap = true;
    std::vector<RingClass> ring;  // of packed gradients that are not kept: reduce_ring()
    RingClass scratch = {};       // a slot for each of the exchanges that overlap: exchange_scratch()
    RingClass exit_buffers = {};  // where reduced gradients go to the host: gradient_exit()
    bool pin = true;              // the host's memory for them
    SwapSpace* files = nullptr;   // of reduced gradients, made for the units. They outlive the reducer
  };

  // Collective (allocates). `placements`: by unit. The layouts, `comm` and `ledger` outlive the reducer.
  Reducer(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options, Comm& comm,
          Ledger& ledger);
  // May go while buckets are in flight, as after a loss.backward() that nobody has ended.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before the first gradient of a backward pass: `needed` are the units of the forward pass in order, a unit once per
  // use. Collective in the first pass with `sync`. May be left out on all ranks: the first pass then goes from the
  // last unit to the first.
  // Over the communicator of the gathers: ranks whose forward passes differ meet there.
  void begin_backward(std::span<const size_t> needed, bool sync, Comm& gather_comm);
  // A gradient has been accumulated: `param` indexes UnitLayout::params. With `sync` false it only joins this rank's
  // own sum. It is dense.
  void add(size_t unit, size_t param, const at::Tensor& grad, bool sync);
  // This unit's backward, or one of its several, has ended on this rank; it may have had none here.
  void flush(size_t unit);
  // Launches and finishes every bucket once.
  void launch_all(bool sync);
  // Per bucket: 0, or, if gradients came after its launch, a number that identifies the unit's end at which they came;
  // so with those of a pass without `sync`.
  // If any rank has such gradients, the bucket needs a second launch on all ranks: pass the ranks' maximum to
  // launch_again().
  std::vector<int64_t> late() const;
  void launch_again(const std::vector<int64_t>& late);
  // Launches and finishes everything; afterwards the reduced gradients can be read.
  void end_backward(bool sync);
  // Drops all gradients since the last step; the pass, if one ran, is as if it had not been. After launch_all().
  void discard();
  // Every rank gets every rank's reduced gradients, of groups that all ranks update whole.
  void gather_reduced();
  // See GradBucket::replace().
  void replace(size_t bucket, size_t index, const at::Tensor& values);
  // Whether some rank may have had a gradient of the parameter since the last step, which drop() drops: any that was
  // reduced counts.
  bool has_grad(size_t unit, size_t param) const;
  void drop(size_t unit, size_t param);
  void end_step();

  // Units in the order in which the next forward pass is expected to need them: the reverse of the order of launches,
  // and so the same on all ranks. Units without a bucket come last.
  const std::vector<size_t>& order_of_forward() const { return order_of_forward_; }
  // One for each trained group, in the order of units and their groups.
  const std::vector<GradBucket>& buckets() const { return buckets_; }
  // Squares of this rank's shards, over all units. On a device the host waits for it. The norm of gradients that were
  // multiplied by the loss scale.
  ExactSum squares() const;

 private:
  enum class Basis { kUnits, kForward, kBackward };  // what the order of launches was taken from
  struct Place {                                     // of a parameter
    int bucket = -1;
    size_t index = 0;
  };
  void make_buckets(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
  size_t num_units() const { return first_of_.size() - 1; }
  GradBucket& filling(size_t bucket);
  SlotRing::Slot* acquire_slot(int64_t bytes);
  void mark_ready(size_t bucket);
  void reset_pass();
  void launch_ready();
  void launch(size_t bucket, bool with_local);
  void finish_oldest();
  void finish_overlapped();
  void finish_all();
  void set_order(std::vector<size_t> order);
  void take_order_of_rank_0(const std::vector<size_t>& own, Comm& comm, std::string_view tag);

  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> memory_;      // packed gradients that are kept, reduced ones
  std::unique_ptr<GradientExit> exit_;  // null where reduced gradients stay
  std::optional<SlotRing> ring_;        // of packed gradients that are not
  std::vector<FlatBuffer> scratch_;     // for transports that copy pieces
  std::vector<GradBucket> buckets_;
  std::vector<size_t> first_of_;              // by unit, and the end: where its buckets begin
  std::vector<std::vector<Place>> place_of_;  // [unit][param]
  std::vector<size_t> order_;                 // of launches, the same on all ranks
  std::vector<size_t> order_of_forward_;      // of units, by order_
  std::vector<size_t> completed_;             // in the first backward pass, in the order of completion
  Basis basis_ = Basis::kUnits;
  size_t launches_ = 0;
  std::vector<bool> ready_;
  // Note [Buckets without gradients]; by bucket.
  std::vector<bool> empty_;    // launched, or waiting for its turn, without any gradient of this pass
  std::vector<int> ends_;      // of its unit, in this pass
  std::vector<int> ready_at_;  // the first end at which it was ready in this pass, or 0
  std::vector<int> due_at_;    // the end at which it is ready at the latest
  size_t next_ = 0;            // position in order_
  size_t last_added_ = 0;      // the bucket with the last gradient: no other has gradients that wait
  std::deque<size_t> in_flight_;
  std::map<int64_t, std::deque<GradBucket::Lent>> draining_;  // by bytes; peers may still read them
  SideStream stream_;  // of exchanges and their sums; the last member, so that it ends before the memory goes
};

}  // namespace zeroshard
