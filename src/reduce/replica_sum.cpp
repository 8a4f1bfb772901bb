#include "reduce/replica_sum.h"

#include <ATen/ops/maximum.h>

#include <span>
#include <utility>

#include "device/math.h"
#include "layout/shard_layout.h"
#include "reduce/grad_bucket.h"

namespace zeroshard {

ReplicaSum::ReplicaSum(Comm& replicas, const Options& options, Ledger& ledger)
    : replicas_(replicas),
      is_coded_(options.is_coded),
      gathers_(options.gathers),
      memory_(replicas, options.buffers.slot_bytes, options.device, ledger, Category::kReduceRing, "sums of replicas") {
}

int64_t ReplicaSum::piece_numel() const {
  return replica_sum_numel(numel_, replicas_.world_size(), is_coded_) / replicas_.world_size();
}

// Returns the fp32 elements of a piece of the sum.
at::Tensor ReplicaSum::values(int piece) const {
  return memory_.view(at::kFloat, piece_numel() * piece * element_size(DType::kFloat32), piece_numel());
}

// Returns the memory of the pieces that replicas exchange. Codes have memory of their own, which follows that of the
// values.
Span ReplicaSum::sent() const {
  const int64_t numel = piece_numel() * replicas_.world_size();
  if (!is_coded_) return {memory_.data(), numel, DType::kFloat32};
  return {memory_.data() + numel * element_size(DType::kFloat32),
          replica_sum_bytes(numel, replicas_.world_size(), /*is_coded=*/true), DType::kOther1};
}

std::byte* ReplicaSum::sent_piece(int piece) const {
  const Span all = sent();
  return static_cast<std::byte*>(all.data) + all.bytes() / replicas_.world_size() * piece;
}

namespace {

// The codes of a piece, and the scales, which follow the codes in memory.
struct CodedPiece {
  at::Tensor codes, scales;

  CodedPiece(void* data, int64_t numel, at::Device device)
      : codes(view_memory(data, numel, at::kByte, device)),
        scales(view_memory(static_cast<std::byte*>(data) + numel, numel / kScaledNumel, at::kFloat, device)) {}
};

}  // namespace

void ReplicaSum::encode(int piece) {
  const at::Tensor from = values(piece), blocks = from.view({-1, kScaledNumel});
  const CodedPiece to(sent_piece(piece), from.numel(), from.device());
  math::encode(from, to.codes, to.scales, /*is_signed=*/true);
  // If a block has a value that is not finite, its scale becomes NaN, so that all ranks find the value and skip the
  // step.
  to.scales.add_(at::maximum(blocks.amax({1}), blocks.amin({1}).neg_()).mul_(0));
}

void ReplicaSum::decode(const void* codes, int piece) {
  const at::Tensor to = values(piece);
  const CodedPiece from(const_cast<void*>(codes), to.numel(), to.device());
  math::decode(from.codes, from.scales, /*is_signed=*/true, to);
}

at::Tensor ReplicaSum::partial(int64_t numel) {
  if (gather_) std::exchange(gather_, nullptr)->drain();
  if (exchange_) std::exchange(exchange_, nullptr)->drain();
  numel_ = numel;
  if (is_coded_) {  // the padding is encoded, too, because pieces are whole blocks
    const int64_t padded = piece_numel() * replicas_.world_size();
    memory_.view(at::kFloat, numel * element_size(DType::kFloat32), padded - numel).zero_();
  }
  return memory_.view(at::kFloat, 0, numel);
}

void ReplicaSum::begin(std::string tag) {
  tag_ = std::move(tag);
  const Span full = sent();
  Span scratch;
  if (replicas_.exchange_needs_scratch())
    scratch = {static_cast<std::byte*>(full.data) + full.bytes(), full.numel, full.dtype};
  if (is_coded_)
    for (int piece = 0; piece < replicas_.world_size(); ++piece) encode(piece);
  exchange_ = replicas_.exchange(full, scratch, tag_);
}

void ReplicaSum::gather() {
  const Span full = sent();
  const int64_t numel = full.numel / replicas_.world_size();
  exchange_->wait();
  const std::span<const void* const> arrived = exchange_->pieces();
  std::vector<const void*> pieces(arrived.begin(), arrived.end());
  for (size_t i = 0; i < pieces.size() && is_coded_; ++i) {
    decode(arrived[i], int(i));
    pieces[i] = values(int(i)).const_data_ptr();
  }
  math::sum_in_order(pieces, at::kFloat, 1, values(replicas_.rank()), /*accumulate=*/false);
  exchange_->release();
  if (!gathers_) return;
  exchange_->drain();  // the gather writes to memory that other replicas read for the exchange
  exchange_.reset();
  if (is_coded_) encode(replicas_.rank());
  gather_ = replicas_.all_gather(full, {sent_piece(replicas_.rank()), numel, full.dtype}, tag_);
}

void ReplicaSum::await() {
  if (exchange_) exchange_->drain();
  if (gather_) gather_->drain();
}

at::Tensor ReplicaSum::finish() {
  if (!gathers_) return values(replicas_.rank());
  gather_->wait();
  for (int piece = 0; piece < replicas_.world_size() && is_coded_; ++piece) decode(sent_piece(piece), piece);
  return memory_.view(at::kFloat, 0, numel_);
}

ReplicaSums::ReplicaSums(Comm& replicas, const ReplicaSum::Options& options, Ledger& ledger) {
  sums_.reserve(size_t(options.buffers.slots));
  for (int i = 0; i < options.buffers.slots; ++i) sums_.emplace_back(replicas, options, ledger);
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

void ReplicaSums::await_all() {
  for (ReplicaSum& sum : sums_) sum.await();
}

void ReplicaSums::finish_all() {
  while (!running_.empty()) finish_oldest();
}

}  // namespace zeroshard
