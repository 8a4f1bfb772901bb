#include "comm/direct_work.h"

#include "comm/arguments.h"
#include "comm/copy.h"
#include "comm/rank_order.h"

namespace zeroshard {
namespace {

const std::byte* bytes_at(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* bytes_at(void* data, int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

}  // namespace

ReadingWork::ReadingWork(std::shared_ptr<DirectCore> core, const Op& op) : core_(std::move(core)), op_(op) {
  core_->add_reader(*this);
}

ReadingWork::~ReadingWork() {
  core_->remove_reader(*this);
}

void ReadingWork::wait() {
  if (done_) return;
  core_->throw_if_failed();
  read_all();
}

void ReadingWork::drain() {
  wait();
  core_->await_finished_by_all(op_);
}

void ReadingWork::read_all() {
  read_peers();
  core_->finish(op_.seq);
  core_->remove_reader(*this);
  done_ = true;
}

const std::byte* ReadingWork::input_of(int rank, const void* own) {
  return input_of(rank, own, op_.numel == 0);
}

const std::byte* ReadingWork::input_of(int rank, const void* own, bool is_empty) {
  if (rank == core_->rank()) return static_cast<const std::byte*>(own);
  const Op theirs = core_->await_posted(rank, op_);
  if (is_empty) return nullptr;
  return static_cast<const std::byte*>(core_->read(rank, theirs));
}

void GatherWork::read_peers() {
  const int64_t bytes = shard_.bytes();
  const int world_size = core().world_size();
  std::byte* own = bytes_at(full_.data, core().rank() * bytes);
  if (own != shard_.data) copy_bytes(own, shard_.data, bytes);
  // Each rank starts with its successor, so that ranks do not all read the same rank's memory at the same time.
  for (int i = 1; i < world_size; ++i) {
    const int peer = (core().rank() + i) % world_size;
    const std::byte* shard = input_of(peer, nullptr);
    copy_bytes(bytes_at(full_.data, peer * bytes), shard, bytes);
  }
}

void ReduceScatterWork::read_peers() {
  const int64_t offset = core().rank() * out_.bytes();
  std::vector<const void*> pieces;
  for (int rank = 0; rank < core().world_size(); ++rank) {
    const std::byte* full = input_of(rank, full_.data);
    pieces.push_back(full == nullptr ? nullptr : full + offset);
  }
  reduce_in_rank_order(pieces, out_.dtype, ReduceOp::kSum, out_.data, out_.numel);
}

void AllToAllWork::read_peers() {
  const int world_size = core().world_size();
  const int64_t bytes = in_.bytes() / world_size;
  for (int i = 0; i < world_size; ++i) {
    const int peer = (core().rank() + i) % world_size;
    const std::byte* in = input_of(peer, in_.data);
    if (bytes > 0) copy_bytes(bytes_at(out_.data, peer * bytes), in + core().rank() * bytes, bytes);
  }
}

void AllToAllVWork::read_peers() {
  const int world_size = core().world_size(), own = core().rank();
  const int64_t size = element_size(in_.dtype);
  for (int i = 0; i < world_size; ++i) {
    const int peer = (own + i) % world_size;
    const int64_t bytes = counts_[size_t(peer * world_size + own)] * size;
    const std::byte* in = input_of(peer, in_.data, bytes == 0);
    if (bytes == 0) continue;
    std::byte* const out = bytes_at(out_.data, received_before(counts_, world_size, peer, own) * size);
    const std::byte* const from = in + sent_before(counts_, world_size, peer, own) * size;
    if (out != from) copy_bytes(out, from, bytes);
  }
}

void AllReduceWork::wait() {
  if (done_) return;
  core_->throw_if_failed();
  std::vector<const void*> inputs;
  for (int rank = 0; rank < core_->world_size(); ++rank) {
    if (rank == core_->rank()) {
      inputs.push_back(data_.data);
      continue;
    }
    const Op theirs = core_->await_posted(rank, op_);
    inputs.push_back(op_.numel == 0 ? nullptr : core_->read(rank, theirs));
  }
  std::vector<std::byte> sum(static_cast<size_t>(data_.bytes()));  // separate, because peers still read data_
  reduce_in_rank_order(inputs, data_.dtype, static_cast<ReduceOp>(op_.argument), sum.data(), data_.numel);
  core_->synchronise(op_);
  copy_bytes(data_.data, sum.data(), data_.bytes());
  done_ = true;
}

void BroadcastWork::wait() {
  if (done_) return;
  core_->throw_if_failed();
  for (int rank = 0; rank < core_->world_size(); ++rank) {
    if (rank == core_->rank()) continue;
    const Op theirs = core_->await_posted(rank, op_);
    if (rank == op_.argument && op_.numel > 0) copy_bytes(data_.data, core_->read(rank, theirs), data_.bytes());
  }
  core_->synchronise(op_);
  done_ = true;
}

void DirectExchange::wait() {
  if (state_ != State::kPosted) return;
  core_->throw_if_failed();
  for (int rank = 0; rank < core_->world_size(); ++rank) {
    const void* full = full_.data;
    if (rank != core_->rank()) {
      const Op theirs = core_->await_posted(rank, op_);
      full = op_.numel == 0 ? nullptr : core_->read(rank, theirs);
    }
    pieces_.push_back(full == nullptr ? nullptr : bytes_at(full, offset_));
  }
  state_ = State::kReadable;
}

void DirectExchange::release() {
  if (state_ == State::kPosted) wait();
  if (state_ != State::kReadable) return;
  core_->finish(op_.seq);
  state_ = State::kReleased;
}

void DirectExchange::drain() {
  if (state_ == State::kDrained) return;
  release();
  core_->await_finished_by_all(op_);
  state_ = State::kDrained;
}

}  // namespace zeroshard
