#include "checkpoint/async_saver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "checkpoint/attempt.h"

namespace zeroshard {
namespace {

constexpr std::chrono::milliseconds kLook(100);    // between looks for an interruption
constexpr int64_t kCopyBytes = int64_t{64} << 20;  // of one call: enough for many threads; then the writer hears of it

}  // namespace

AsyncSaver::AsyncSaver(Comm& comm, Io& io, Ledger& ledger)
    : comm_(comm), io_(io), ledger_(ledger), process_(::getpid()) {
  worker_->thread = std::thread([this] { run(); });
}

AsyncSaver::~AsyncSaver() {
  if (::getpid() != process_) {
    static_cast<void>(worker_.release());
    return;
  }
  attempt([&] { wait(); }, [](const std::string& reason) { return "the last checkpoint was not saved: " + reason; },
          LogLevel::kError);
  {
    const std::scoped_lock lock(worker_->mutex);
    worker_->stop = true;
  }
  worker_->changed.notify_all();
  worker_->thread.join();
  reserve(0);
}

// Mapped rather than allocated: what a smaller save does not need goes back to the system at once.
std::byte* AsyncSaver::reserve(int64_t bytes) {
  if (bytes == staging_bytes_) return staging_;
  if (staging_ != nullptr) {
    ::munmap(staging_, size_t(staging_bytes_));
    ledger_.remove(Category::kCheckpointStaging, Tier::kHost, staging_bytes_);
    staging_ = nullptr;
    staging_bytes_ = 0;
  }
  if (bytes == 0) return nullptr;
  const auto copied = std::make_shared<HostData>(nullptr);  // what can throw comes before the mapping
  void* const memory = ::mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ZS_CHECK(memory != MAP_FAILED, "no memory for a copy of ", bytes,
           " bytes of this rank's state: save synchronously (zeroshard.checkpoint.async: false)");
  ::madvise(memory, size_t(bytes), MADV_HUGEPAGE);
  staging_ = static_cast<std::byte*>(memory);
  *copied = HostData(memory);
  copied_ = copied;
  staging_bytes_ = bytes;
  ledger_.add(Category::kCheckpointStaging, Tier::kHost, bytes);
  return staging_;
}

void AsyncSaver::prepare(const SaveRequest& request, int64_t staging_bytes) {
  wait();
  int64_t bytes = 0;
  for (const StateSlice& slice : request.slices) bytes += slice.bytes();
  reserve(std::max(bytes, staging_bytes));
  stretches_.reserve(request.slices.size());
}

void AsyncSaver::start(SaveRequest request, const Copy& copy, int64_t staging_bytes) {
  prepare(request, staging_bytes);
  relocate(request.slices);
  request.wait_for_data = [this](const void* end) { wait_for_copy(end); };
  {
    const std::scoped_lock lock(worker_->mutex);
    worker_->copied_until = staging_;
    worker_->copy_error = nullptr;
    worker_->request = std::move(request);
  }
  worker_->changed.notify_all();
  // From here on the others wait for this rank: what fails is told by the thread.
  try {
    for (const Stretch& stretch : stretches_) {
      for (int64_t at = 0; at < stretch.bytes; at += kCopyBytes) {
        const int64_t bytes = std::min(kCopyBytes, stretch.bytes - at);
        if (stretch.from != nullptr) {
          copy(stretch.to + at, stretch.from + at, bytes);
        } else {
          stretch.data->read(stretch.offset + at, bytes, stretch.to + at);
        }
        publish(stretch.to + at + bytes);
      }
    }
  } catch (...) {
    publish(nullptr, std::current_exception());
  }
  stretches_.clear();  // the data may go
}

// Gives the slices places in the staging memory, one after the other. Slices that are neighbours in memory stay so: few
// large copies.
void AsyncSaver::relocate(std::vector<StateSlice>& slices) {
  std::byte* to = staging_;
  stretches_.clear();
  for (StateSlice& slice : slices) {
    const std::byte* const from = slice.on_host();
    const int64_t bytes = slice.bytes();
    if (bytes > 0) {
      const auto follows = [&](const Stretch& last) {
        if (from != nullptr) return last.from != nullptr && from == last.from + last.bytes;
        return last.data == slice.data && last.from == nullptr && slice.offset == last.offset + last.bytes;
      };
      if (stretches_.empty() || !follows(stretches_.back()))
        stretches_.push_back({to, from, slice.data, slice.offset, 0});
      stretches_.back().bytes += bytes;
    }
    slice.data = copied_;
    slice.offset = to - staging_;
    to += bytes;
  }
}

void AsyncSaver::publish(const std::byte* copied_until, std::exception_ptr error) {
  {
    const std::scoped_lock lock(worker_->mutex);
    worker_->copied_until = copied_until;
    worker_->copy_error = std::move(error);
  }
  worker_->changed.notify_all();
}

void AsyncSaver::wait_for_copy(const void* end) {
  std::unique_lock lock(worker_->mutex);
  worker_->changed.wait(lock, [&] { return worker_->copied_until >= end || worker_->copy_error; });
  if (worker_->copy_error) std::rethrow_exception(worker_->copy_error);
}

void AsyncSaver::await_end() {
  std::unique_lock lock(worker_->mutex);
  while (!worker_->changed.wait_for(lock, kLook, [&] { return !worker_->request; })) {
    lock.unlock();  // the check may call what asks whether the saver is busy
    check_interrupt();
    lock.lock();
  }
}

void AsyncSaver::wait() {
  await_end();
  const std::scoped_lock lock(worker_->mutex);
  if (worker_->error) std::rethrow_exception(std::exchange(worker_->error, nullptr));
}

bool AsyncSaver::busy() const {
  const std::scoped_lock lock(worker_->mutex);
  return worker_->request.has_value();
}

bool AsyncSaver::failed() const {
  const std::scoped_lock lock(worker_->mutex);
  return worker_->error != nullptr;
}

void AsyncSaver::run() {
  Worker& worker = *worker_;
  std::unique_lock lock(worker.mutex);
  while (true) {
    worker.changed.wait(lock, [&] { return worker.stop || worker.request; });
    if (!worker.request) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      save_checkpoint(*worker.request, comm_, io_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    worker.error = error;
    worker.request.reset();
    worker.changed.notify_all();
  }
}

}  // namespace zeroshard
