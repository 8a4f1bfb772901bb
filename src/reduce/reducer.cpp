#include "reduce/reducer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/cut.h"
#include "device/device_squares.h"
#include "device/dtype.h"
#include "plan/device_memory.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// Exceeds the numbers of all ends (see Note [Buckets without gradients]). late() subtracts the number of an end from
// kMaxEnds, so a larger result means an earlier end.
constexpr int64_t kMaxEnds = int64_t{1} << 30;

template <typename Visit>
void for_each_trainable(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Visit visit) {
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const FlatGroup& group = units[u].groups[g];
      if (group.requires_grad) visit(group, placements[u].groups[g]);
    }
  }
}

}  // namespace

Reducer::Reducer(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options,
                 Comm& comm, Ledger& ledger)
    : options_(std::move(options)), comm_(comm), ledger_(ledger), stream_(options_.device) {
  // A native reduction is not used if the transport shares memory. There it would add in the same way as this class
  // does, but would not say when its input may change again, as an exchange does.
  options_.native = options_.native && comm.exchange_needs_scratch();
  options_.ledger = &ledger;
  options_.rank = options_.share_states ? options_.all->rank() : comm.rank();
  if (options_.exit_buffers.slots > 0) {
    exit_ = std::make_unique<GradientExit>(options_.device, options_.exit_buffers, ledger);
    options_.exit = exit_.get();
  }
  make_buckets(units, placements);
  progress_.resize(buckets_.size());
  if (!options_.ring.empty()) {
    ring_.emplace(slots_by_size(options_.ring), [this](int64_t bytes) {
      // All ranks allocate the ring together. A slot beyond the ring (SlotRing::acquire) is allocated by this rank
      // alone.
      if (ring_) return FlatBuffer(bytes, options_.device, ledger_, Category::kReduceRing, &comm_);
      return FlatBuffer(comm_, bytes, options_.device, ledger_, Category::kReduceRing, "reduce ring");
    });
  }
  for (int i = 0; i < options_.scratch.slots; ++i)
    scratch_.emplace_back(options_.scratch.slot_bytes, options_.device, ledger, Category::kReduceRing, &comm_);
  if (options_.replicas != nullptr)
    replicas_.emplace(*options_.replicas,
                      ReplicaSum::Options{options_.quantized, /*gathers=*/!options_.share_states,
                                          options_.replica_buffers, options_.device},
                      ledger);
}

// On the CPU, the destructor does not wait for exchanges in flight, because a peer may never join them.
Reducer::~Reducer() {
  if (options_.device.is_cpu()) return;
  try {
    const SideStream::Scope scope(stream_);
    for (const size_t index : in_flight_) buckets_[index].await_exchange();
    if (replicas_) replicas_->await_all();
  } catch (const std::exception&) {  // the device or a rank has failed, so nobody uses the memory again
  }
}

void Reducer::make_buckets(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements) {
  int64_t full_bytes = 0, grad_bytes = 0;
  size_t count = 0;
  for_each_trainable(units, placements, [&](const FlatGroup& group, const GroupPlacement& place) {
    ++count;
    full_bytes += place.packed_gradients.bytes(group.layout);
    if (place.reduced_gradients.tier != Tier::kFile) grad_bytes += place.reduced_gradients.bytes(group.layout);
  });
  const auto allocate = [&](int64_t bytes, std::string_view tag, bool on_host = false) {
    if (bytes == 0) return Carver(on_host ? at::kCPU : options_.device);
    if (on_host)
      memory_.push_back(FlatBuffer::on_host(bytes, options_.device, options_.pin, ledger_, Category::kGradients));
    else
      memory_.emplace_back(comm_, bytes, options_.device, ledger_, Category::kGradients, tag);
    return Carver(memory_.back());
  };
  Carver full_memory = allocate(full_bytes, "gradients"),
         grad_memory = allocate(grad_bytes, "reduced gradients", exit_ != nullptr);

  buckets_.reserve(count);
  std::vector<size_t> first_of;
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitLayout& unit = units[u];
    first_of.push_back(buckets_.size());
    place_of_.emplace_back(unit.params.size());
    for (size_t g = 0; g < unit.groups.size(); ++g) {
      const FlatGroup& group = unit.groups[g];
      if (!group.requires_grad) continue;
      for (size_t i = 0; i < group.params.size(); ++i) place_of_.back()[group.params[i]] = {int(buckets_.size()), i};
      const GroupPlacement& place = placements[u].groups[g];
      at::Tensor full;
      std::unique_ptr<Array> grads;
      if (place.keeps_packed()) full = full_memory.take(place.wire_dtype, group.layout.padded_numel());
      if (place.reduced_gradients.tier == Tier::kFile) {
        grads = std::make_unique<Array>(values_in_files(*options_.files, options_.files->next_group(),
                                                        place.reduced_gradients, group.layout, Category::kGradients,
                                                        ledger_));
      } else if (!place.reduces_in_place()) {
        grads =
            std::make_unique<Array>(grad_memory.take(place.grad_dtype, place.reduced_gradients.numel(group.layout)));
      } else {
        grads = std::make_unique<Array>(place.updates_whole() ? full : cut(full, group.layout.part(options_.rank)));
      }
      buckets_.emplace_back(unit, g, place, options_, comm_, std::move(full), std::move(grads));
    }
  }
  first_of.push_back(buckets_.size());
  order_.emplace(std::move(first_of), options_.all);
}

void Reducer::begin_backward(std::span<const size_t> needed, bool sync, Comm& gather_comm) {
  // The order is kept if buckets were already launched or completed. A pass that gives parameters no gradients
  // (torch.autograd.grad of an output) can launch or complete buckets before the first backward.
  if (!sync || next_ != 0 || !order_->can_learn_forward()) return;
  std::vector<int> uses(order_->num_units(), 0);  // consecutive uses count as one, because their backward ends once
  for (size_t i = 0; i < needed.size(); ++i) uses.at(needed[i]) += i == 0 || needed[i] != needed[i - 1] ? 1 : 0;
  for (size_t unit = 0; unit < uses.size(); ++unit)
    for (const size_t bucket : order_->of_unit(unit)) progress_[bucket].due_at = std::max(uses[unit], 1);
  order_->learn_forward(needed, gather_comm);
}

void Reducer::read_ahead() {
  if (options_.files == nullptr) return;
  std::vector<ChunkStore::Announced> next;
  const std::vector<size_t>& units = order_->units_of_forward();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    for (const size_t bucket : order_->of_unit(*unit)) {
      if (!buckets_[bucket].reduced().are_current()) continue;
      const Array& grads = buckets_[bucket].reduced().values();
      if (const auto place = grads.place_in_files({0, grads.numel()})) next.push_back(*place);
    }
  }
  options_.files->will_need_next(next);
}

void Reducer::add(size_t unit, size_t param, const at::Tensor& grad, bool sync) {
  const Place place = place_of_.at(unit).at(param);
  ZS_ASSERT(place.bucket >= 0, "a frozen parameter got a gradient");
  const auto index = size_t(place.bucket);
  if (!sync) return buckets_[index].add_local(place.index, grad);
  GradBucket& bucket = buckets_[index];
  if (replicas_ && bucket.is_in_flight()) {
    // This is a late gradient. It gets a second reduction at the end of the pass. See Note [Launches of replicas].
    bucket.add_late(place.index, grad);
  } else {
    filling(index);
    if (const size_t before = std::exchange(last_added_, index); before != index) buckets_[before].pack();
    bucket.add(place.index, grad);
  }
  if (Progress& progress = progress_[index]; progress.is_empty) {
    progress.is_empty = false;
    progress.ready_at = progress.ends + 1;
    order_->note_ready(index);  // so that later passes launch the bucket at the place where its gradients came
  }
  if (bucket.is_complete()) mark_ready(index);
}

// Finishes the bucket's earlier reduction, if one runs, and returns the bucket in state Filling. A bucket that borrows
// slots takes another slot if one is free, and does not wait until peers have read the earlier slot. Such a wait could
// hang, because a peer whose backward failed reads that slot only after another gather, in which this rank must take
// part. A bucket with a buffer of its own waits until peers have read that buffer.
GradBucket& Reducer::filling(size_t index) {
  GradBucket& bucket = buckets_[index];
  while (bucket.is_in_flight()) {  // a late gradient has come, and gets a second reduction
    ZS_ASSERT(!in_flight_.empty(), "unit ", bucket.unit_name(), " waits for other replicas");
    finish_oldest();
  }
  if (bucket.is_draining()) bucket.drain();
  if (bucket.is_idle()) bucket.begin(bucket.needs_slot() ? acquire_slot(bucket.slot_bytes()) : nullptr);
  return bucket;
}

SlotRing::Slot* Reducer::acquire_slot(int64_t bytes) {
  std::deque<GradBucket::Lent>& draining = draining_[bytes];
  while (true) {
    if (SlotRing::Slot* const slot = ring_->try_acquire(bytes)) return slot;
    const auto same_class = [&](size_t index) { return buckets_[index].slot_bytes() == bytes; };
    if (!draining.empty()) {
      ring_->release(draining.front().drain());
      draining.pop_front();
    } else if (!replicas_ && std::any_of(in_flight_.begin(), in_flight_.end(), same_class)) {
      finish_oldest();
    } else {
      return ring_->acquire(bytes);  // each slot is being filled, or its bucket must not be launched or finished yet
    }
  }
}

void Reducer::end_unit_backward(size_t unit) {
  for (const size_t index : order_->of_unit(unit)) {
    Progress& progress = progress_[index];
    ++progress.ends;
    if (!progress.is_ready && !buckets_[index].is_filling() && progress.ends >= progress.due_at) {
      filling(index);
      progress.is_empty = true;
    }
    if (buckets_[index].is_filling()) mark_ready(index);
    if (progress.is_ready && progress.ready_at == 0) progress.ready_at = progress.ends;
  }
}

void Reducer::mark_ready(size_t index) {
  if (std::exchange(progress_[index].is_ready, true)) return;
  order_->note_ready(index);
  launch_ready();
}

void Reducer::launch_ready() {
  const std::vector<size_t>& order = order_->buckets();
  while (next_ < order.size() && progress_[order[next_]].is_ready) {
    launch(order[next_], /*with_local=*/!progress_[order[next_]].is_empty);
    ++next_;  // after launch(), because launch_all() must try a failed launch again
    finish_overlapped();
  }
}

void Reducer::launch(size_t index, bool with_local) {
  GradBucket& bucket = buckets_[index];
  while (!scratch_.empty() && in_flight_.size() >= scratch_.size()) finish_oldest();
  Span scratch;
  if (!scratch_.empty()) {
    scratch = {scratch_[launches_ % scratch_.size()].data(), bucket.group().layout.padded_numel(), bucket.wire_dtype()};
  }
  bucket.pack();  // on the stream that made the gradients, because another stream would keep their memory for longer
  {
    const SideStream::Scope scope(stream_);
    bucket.launch(scratch, with_local);
  }
  ++launches_;
  in_flight_.push_back(index);
}

void Reducer::finish_overlapped() {
  while (in_flight_.size() > (options_.overlap ? 1 : 0)) finish_oldest();
}

void Reducer::finish_oldest() {
  const size_t index = in_flight_.front();
  GradBucket& bucket = buckets_[index];
  {
    const SideStream::Scope scope(stream_);
    replicas_ ? replicas_->add(bucket) : bucket.finish();
  }
  in_flight_.pop_front();
  if (bucket.needs_slot()) draining_[bucket.slot_bytes()].push_back(bucket.hand_over());
  if (!options_.overlap) finish_replicas();
}

void Reducer::finish_replicas() {
  if (!replicas_) return;
  const SideStream::Scope scope(stream_);
  replicas_->finish_all();
}

void Reducer::launch_all(bool sync) {
  if (!sync) return;
  for (const size_t index : order_->buckets()) {
    if (progress_[index].is_ready) continue;
    filling(index);  // a bucket without gradients is launched, too, because other ranks may have gradients for it
    mark_ready(index);
  }
  launch_ready();
  finish_all();
}

void Reducer::finish_all() {
  while (!in_flight_.empty()) finish_oldest();
  finish_replicas();
  stream_.join();
  if (exit_) exit_->settle();
}

std::vector<int64_t> Reducer::late() const {
  std::vector<int64_t> late(buckets_.size(), 0);
  for (size_t i = 0; i < buckets_.size(); ++i)
    if (buckets_[i].is_filling() || buckets_[i].has_local())
      late[i] = kMaxEnds - std::clamp<int64_t>(progress_[i].ready_at, 1, kMaxEnds - 1);
  return late;
}

void Reducer::launch_again(const std::vector<int64_t>& late) {
  for (const size_t index : order_->buckets()) {
    if (late.at(index) == 0) continue;
    progress_[index].ready_at = int(kMaxEnds - late[index]);
    filling(index);
    launch(index, /*with_local=*/true);
    finish_overlapped();
  }
}

void Reducer::end_backward(bool sync) {
  if (!sync) return;
  launch_all(sync);
  launch_again(late());
  finish_all();
  for (GradBucket& bucket : buckets_) bucket.end_backward();
  order_->learn_backward(comm_);
  for (Progress& progress : progress_)
    if (progress.ready_at > 0) progress.due_at = progress.ready_at;
  reset_pass();
}

void Reducer::reset_pass() {
  for (Progress& progress : progress_) progress = {.due_at = progress.due_at};
  next_ = 0;
}

void Reducer::discard() {
  for (GradBucket& bucket : buckets_) {
    if (SlotRing::Slot* const slot = bucket.discard()) ring_->release(slot);
  }
  order_->discard();
  reset_pass();
}

void Reducer::gather_reduced() {
  if (comm_.world_size() == 1) return;
  std::vector<std::unique_ptr<Work>> works;
  for (GradBucket& bucket : buckets_)
    if (bucket.updates_whole()) works.push_back(bucket.gather_reduced());
  for (const auto& work : works) work->wait();
}

void Reducer::replace(size_t bucket, size_t index, const at::Tensor& values) {
  buckets_.at(bucket).replace(index, values);
  if (exit_) exit_->settle();
}

bool Reducer::has_grad(size_t unit, size_t param) const {
  const Place& place = place_of_.at(unit).at(param);
  if (place.bucket < 0) return false;
  const GradBucket& bucket = buckets_[size_t(place.bucket)];
  return bucket.reduced().are_current() || bucket.has_grad(place.index);
}

void Reducer::drop(size_t unit, size_t param) {
  const Place& place = place_of_.at(unit).at(param);
  buckets_.at(size_t(place.bucket)).drop(place.index);
  if (exit_) exit_->settle();
}

void Reducer::end_step() {
  for (GradBucket& bucket : buckets_) bucket.end_step();
}

ExactSum Reducer::squares() const {
  ExactSum sum;
  if (exit_) {
    std::vector<bool> reduced;
    for (const GradBucket& bucket : buckets_) reduced.push_back(bucket.reduced().are_current());
    return exit_->squares(reduced);
  }
  std::vector<at::Tensor> shards;
  for (const GradBucket& bucket : buckets_) {
    if (options_.device.is_cpu()) {
      sum.add(bucket.reduced().squares());
    } else if (bucket.reduced().are_current()) {
      shards.push_back(bucket.reduced().part());
    }
  }
  if (shards.empty()) return sum;
  const Temporary limbs(ledger_, kSquaresBytes);
  sum.add(sum_of_squares(shards));
  return sum;
}

}  // namespace zeroshard
