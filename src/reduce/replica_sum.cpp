#include "reduce/replica_sum.h"

#include <span>
#include <utility>

#include "device/math.h"
#include "reduce/grad_bucket.h"

namespace zeroshard {

ReplicaSum::ReplicaSum(Comm& replicas, int64_t slot_bytes, at::Device device, Ledger& ledger)
    : replicas_(replicas), memory_(replicas, slot_bytes, device, ledger, Category::kReduceRing, "sums of replicas") {}

Span ReplicaSum::padded() const {
  return {memory_.data(), replica_sum_numel(numel_, replicas_.world_size()), DType::kFloat32};
}

at::Tensor ReplicaSum::partial(int64_t numel) {
  if (gather_) std::exchange(gather_, nullptr)->drain();
  numel_ = numel;
  return memory_.view(at::kFloat, 0, numel);
}

void ReplicaSum::begin(std::string tag) {
  tag_ = std::move(tag);
  const Span full = padded();
  Span scratch;
  if (replicas_.exchange_needs_scratch()) scratch = {memory_.data() + full.bytes(), full.numel, full.dtype};
  exchange_ = replicas_.exchange(full, scratch, tag_);
}

void ReplicaSum::gather() {
  const Span full = padded();
  const int64_t piece = full.numel / replicas_.world_size();
  exchange_->wait();
  const at::Tensor mine = memory_.view(at::kFloat, piece * replicas_.rank() * element_size(DType::kFloat32), piece);
  math::sum_in_order(exchange_->pieces(), at::kFloat, 1, mine, /*accumulate=*/false);
  exchange_->release();
  exchange_->drain();  // the gather writes to memory that the other replicas have read
  exchange_.reset();
  gather_ = replicas_.all_gather(full, {mine.const_data_ptr(), piece, full.dtype}, tag_);
}

at::Tensor ReplicaSum::finish() {
  gather_->wait();
  return memory_.view(at::kFloat, 0, numel_);
}

ReplicaSums::ReplicaSums(Comm& replicas, const RingClass& buffers, at::Device device, Ledger& ledger) {
  sums_.reserve(size_t(buffers.slots));
  for (int i = 0; i < buffers.slots; ++i) sums_.emplace_back(replicas, buffers.slot_bytes, device, ledger);
}

void ReplicaSums::add(GradBucket& bucket) {
  if (running_.size() == sums_.size()) finish_oldest();
  if (!running_.empty() && !std::exchange(running_.back().gathers, true)) running_.back().sum->gather();
  ReplicaSum& sum = sums_[count_++ % sums_.size()];
  bucket.sum_in_replica(sum.partial(bucket.group().layout.shard_numel()));
  sum.begin(bucket.unit_name());
  running_.push_back({&bucket, &sum});
}

void ReplicaSums::finish_oldest() {
  const Running oldest = running_.front();
  if (!oldest.gathers) oldest.sum->gather();
  oldest.bucket->take_sum(oldest.sum->finish());
  running_.pop_front();
}

void ReplicaSums::finish_all() {
  while (!running_.empty()) finish_oldest();
}

}  // namespace zeroshard
