#include "comm_c10d/tiers.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "comm/copy.h"
#include "comm_c10d/c10d_names.h"
#include "kernels/kernels.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kWindowBytes = 4 << 20;
constexpr size_t kWindows = 2;  // the ranks of the host read one window while the link fills the other

at::Tensor bytes_at(const void* data, int64_t bytes) {
  return at::from_blob(const_cast<void*>(data), {bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

class Tiers::Job final : public c10d::Work {
 public:
  Job(std::string_view tag_, Span full_, ConstSpan shard_) : tag(tag_), full(full_), shard(shard_) {}
  Job(std::string_view tag_, std::function<void()> alone_)
      : tag(tag_), alone(std::move(alone_)), shard(nullptr, 0, DType::kOther1) {}
  void end(const std::exception_ptr& error) { finish(error); }

  std::string tag;
  std::function<void()> alone;  // runs the whole job; null: the job is a gather, which runs piece by piece
  Span full;
  ConstSpan shard;
  int64_t begun = 0;  // how many bytes of the shard the link was given
};

Tiers::Tiers(std::unique_ptr<DirectComm> host, c10::intrusive_ptr<c10d::ProcessGroup> link)
    : host_(std::move(host)), link_(std::move(link)) {
  thread_ = std::thread([this] { run(); });
}

Tiers::~Tiers() {
  bool is_idle = false;
  {
    const std::scoped_lock lock(mutex_);
    is_idle = queue_.empty() && !failure_;
    stops_ = true;
  }
  changed_.notify_all();
  if (!is_idle) abort("a rank left collectives behind that were not done");
  thread_.join();
  if (!failure_) return;
  // Gloo might still write to the windows, so they are never freed. The group is never destroyed either, because Gloo's
  // destructor would wait for peers that do not answer.
  c10::raw::intrusive_ptr::incref(link_.get());
  new std::vector<Window>(std::move(windows_));
}

Tiers::WorkPtr Tiers::all_gather(Span full, ConstSpan shard, std::string_view tag) {
  return add(c10::make_intrusive<Job>(tag, full, shard));
}

Tiers::WorkPtr Tiers::broadcast(const at::Tensor& data, int root, std::string_view tag) {
  return add(
      c10::make_intrusive<Job>(tag, [this, data, root, tag = std::string(tag)] { broadcast_here(data, root, tag); }));
}

Tiers::WorkPtr Tiers::exchange(ConstSpan full, float* sums, std::string_view tag) {
  return add(
      c10::make_intrusive<Job>(tag, [this, full, sums, tag = std::string(tag)] { sum_and_exchange(full, sums, tag); }));
}

Tiers::WorkPtr Tiers::allocate(int64_t bytes, std::string_view tag,
                               const std::shared_ptr<std::unique_ptr<Allocation>>& result) {
  return add(c10::make_intrusive<Job>(
      tag, [this, bytes, result, tag = std::string(tag)] { *result = host_->allocate(bytes, tag); }));
}

void Tiers::abort(std::string_view reason) noexcept {
  try {
    const std::scoped_lock lock(mutex_);
    if (reason_.empty()) reason_ = reason;
  } catch (const std::exception&) {  // without memory for the reason, throw_if_stopped() finds the abort in host_
  }
  changed_.notify_all();
  host_->abort(reason);
}

bool Tiers::has_failed() {
  const std::scoped_lock lock(mutex_);
  return failure_ != nullptr;
}

Tiers::WorkPtr Tiers::add(JobPtr job) {
  std::exception_ptr failure;
  {
    const std::scoped_lock lock(mutex_);
    failure = failure_;
    if (!failure) queue_.push_back(job);
  }
  if (failure) job->end(failure);
  changed_.notify_all();
  return job;
}

// Waits until there is a job, or until the destructor or abort() is called. Returns the oldest job. Returns null if
// there is none, so that the thread ends.
Tiers::JobPtr Tiers::await_job() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !queue_.empty() || stops_ || !reason_.empty(); });
  return queue_.empty() ? JobPtr() : queue_.front();
}

// Returns the oldest gather that has a piece to begin. Returns null if there is none, or if a job that runs alone comes
// before it.
Tiers::JobPtr Tiers::next_gather() {
  const std::scoped_lock lock(mutex_);
  for (const JobPtr& job : queue_) {
    if (job->alone) return {};
    if (job->begun < job->shard.bytes()) return job;
  }
  return {};
}

void Tiers::end_job() {
  JobPtr job;
  {
    const std::scoped_lock lock(mutex_);
    job = queue_.front();
    queue_.pop_front();
  }
  job->end(nullptr);
}

void Tiers::throw_if_stopped() {
  const std::scoped_lock lock(mutex_);
  if (!reason_.empty()) throw CommError(reason_);
  // Another rank of this host might have failed while this rank waits for the link.
  if (const std::string why = host_->why_broken(); !why.empty()) throw CommError(why);
}

void Tiers::run() {
  const UninterruptedThread uninterrupted;
  std::exception_ptr failure;
  try {
    while (true) {
      throw_if_stopped();
      begin_pieces();
      if (!pieces_.empty()) {
        end_piece();
        continue;
      }
      const JobPtr job = await_job();
      throw_if_stopped();
      if (!job) return;
      if (!job->alone) continue;
      job->alone();
      end_job();
    }
  } catch (const std::exception& error) {
    failure = std::current_exception();
    host_->abort(error.what());  // because the other ranks get nothing from this rank any more
  }
  std::deque<JobPtr> left;
  {
    const std::scoped_lock lock(mutex_);
    failure_ = failure;
    left.swap(queue_);
  }
  for (const JobPtr& job : left) job->end(failure);
}

void Tiers::begin_pieces() {
  while (pieces_.size() < kWindows) {
    const JobPtr job = next_gather();
    if (!job) return;
    begin_piece(job);
  }
}

at::Tensor Tiers::window_bytes(size_t window, int64_t bytes) const {
  return bytes_at(windows_[window].memory->data(), bytes);
}

void Tiers::begin_piece(const JobPtr& job) {
  while (windows_.size() < kWindows) windows_.push_back({host_->allocate(kWindowBytes, "windows")});
  const size_t number = static_cast<size_t>(begun_++) % kWindows;
  Window& window = windows_[number];
  if (window.readers) std::exchange(window.readers, nullptr)->drain();
  const int64_t most = std::max<int64_t>(kWindowBytes / hosts() / 64 * 64, 1);
  const int64_t begin = job->begun, bytes = std::min(most, job->shard.bytes() - begin);
  const at::Tensor out = window_bytes(number, bytes * hosts());
  const at::Tensor in = bytes_at(static_cast<const std::byte*>(job->shard.data) + begin, bytes);
  pieces_.push_back({job, begin, bytes, number, c10d_names::all_gather(*link_, out, in)});
  job->begun += bytes;
}

// Waits until the link has received the oldest piece. Then lets the other ranks of this host read it, and copies to the
// job's output what the links of all ranks of this host have received. After the last piece, ends the job.
void Tiers::end_piece() {
  await(*pieces_.front().link);
  const Piece& piece = pieces_.front();
  const Job& job = *piece.job;
  Window& window = windows_[piece.window];
  auto exchange = host_->share({window.memory->data(), piece.bytes * hosts(), DType::kOther1}, job.tag);
  exchange->wait();
  const int own = host_->rank(), ranks = ranks_per_host();
  for (int i = 0; i < ranks; ++i) {
    // Each rank starts with its own window, so that ranks do not all read the same memory at the same time.
    const int rank = (own + i) % ranks;
    const auto* const rows = static_cast<const std::byte*>(exchange->pieces()[static_cast<size_t>(rank)]);
    for (int host = 0; host < hosts(); ++host) {
      const int64_t to = int64_t{host * ranks + rank} * job.shard.bytes() + piece.begin;
      copy_bytes(static_cast<std::byte*>(job.full.data) + to, rows + host * piece.bytes, piece.bytes);
    }
  }
  exchange->release();
  window.readers = std::move(exchange);
  const bool is_last = piece.begin + piece.bytes == job.shard.bytes();
  pieces_.pop_front();
  if (is_last) end_job();
}

// Waits for `work`. If `work` belongs to a piece, gives the next pieces to the link meanwhile.
void Tiers::await(c10d::Work& work) {
  const auto start = Clock::now();
  while (!work.isCompleted()) {
    throw_if_stopped();
    if (!pieces_.empty()) begin_pieces();
    const auto nap = (Clock::now() - start) / 16;
    std::this_thread::sleep_for(
        std::clamp<Clock::duration>(nap, std::chrono::microseconds(10), std::chrono::microseconds(200)));
  }
  work.wait();  // does not wait any more, but throws if the work has failed
}

void Tiers::sum_and_exchange(const ConstSpan& full, float* sums, const std::string& tag) {
  const int own = host_->rank(), ranks = ranks_per_host();
  const int64_t numel = full.numel / ranks / hosts();
  const auto exchange = host_->share(full, tag);
  exchange->wait();
  for (int host = 0; host < hosts(); ++host) {
    std::vector<const void*> pieces;
    for (const void* const piece : exchange->pieces())
      pieces.push_back(static_cast<const std::byte*>(piece) +
                       int64_t{host * ranks + own} * numel * element_size(full.dtype));
    kernels::sum_in_order(pieces, full.dtype, 1, sums + host * numel, DType::kFloat32, /*accumulate=*/false, numel);
  }
  exchange->release();
  const int64_t bytes = hosts() * numel * int64_t{sizeof(float)};
  const auto work = c10d_names::all_to_all(*link_, bytes_at(shard_sums(full, sums), bytes), bytes_at(sums, bytes));
  await(*work);
  exchange->drain();
}

void Tiers::broadcast_here(const at::Tensor& data, int root, const std::string& tag) {
  c10d::BroadcastOptions options;
  options.rootRank = root / ranks_per_host();
  const int own_root = root % ranks_per_host();
  if (host_->rank() == own_root) {
    std::vector<at::Tensor> tensors{data};
    await(*link_->broadcast(tensors, options));
  }
  host_->broadcast({data.data_ptr(), data.numel(), DType::kOther1}, own_root, tag)->wait();
}

}  // namespace zeroshard
