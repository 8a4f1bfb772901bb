#include "checkpoint/async_saver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "checkpoint/attempt.h"
#include "checkpoint/told.h"

namespace zeroshard {
namespace {

constexpr std::chrono::milliseconds kLook(100);  // time between checks for an interrupt
// The size of one piece of a copy. A piece is large enough to be divided among many threads, and small enough for the
// saver's thread to start writing early.
constexpr int64_t kCopyBytes = int64_t{64} << 20;

// Maps memory instead of allocating it, because the system gets mapped memory back as soon as it is freed. The saver
// frees it when the next save needs another size. Throws ValueError if there is no memory.
std::shared_ptr<std::byte> map_memory(int64_t bytes) {
  void* const memory = ::mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ZS_CHECK(memory != MAP_FAILED, "no memory for a copy of ", bytes,
           " bytes of this rank's state: save synchronously (zeroshard.checkpoint.async: false)");
  ::madvise(memory, size_t(bytes), MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), [bytes](std::byte* mapped) { ::munmap(mapped, size_t(bytes)); }};
}

// Returns whether the saver writes the slice to a file without a copy in staging memory.
bool is_held(const StateSlice& slice) {
  return slice.data && slice.data->is_held();
}

}  // namespace

struct AsyncSaver::Workers {
  struct Entry {
    pid_t process;
    std::weak_ptr<Worker> worker;
  };
  std::mutex mutex;
  std::vector<Entry> entries;
};

AsyncSaver::Workers& AsyncSaver::workers() {
  static auto* const all = new Workers;  // never destroyed, because savers can live until the process ends
  return *all;
}

AsyncSaver::AsyncSaver(Comm& comm, Io& io, Ledger& ledger, DeviceCopies* copies)
    : comm_(comm), io_(io), ledger_(ledger), copies_(copies), process_(::getpid()) {
  worker_->thread = std::thread([this] { run(); });
  const std::scoped_lock lock(workers().mutex);
  std::erase_if(workers().entries, [](const Workers::Entry& entry) { return entry.worker.expired(); });
  workers().entries.push_back({process_, worker_});
}

AsyncSaver::~AsyncSaver() {
  if (::getpid() != process_) {
    // The worker is never destroyed in a forked child, which cannot join the thread.
    static_cast<void>(new std::shared_ptr<Worker>(std::move(worker_)));
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

std::byte* AsyncSaver::reserve(int64_t bytes) {
  if (bytes == staging_bytes_) return staging_;
  if (staging_ != nullptr) {
    worker_->staging.reset();
    reserved_.release();
    staging_ = nullptr;
    staging_bytes_ = 0;
  }
  if (bytes == 0) return nullptr;
  Reservation reserved(ledger_, Category::kCheckpointStaging, Tier::kHost, bytes);
  // `copied` is made before the staging memory, because making it can throw. If it threw afterwards, the staging memory
  // would stay allocated, but the ledger would no longer count it.
  const auto copied = std::make_shared<HostData>(nullptr);
  worker_->staging = copies_ != nullptr ? copies_->host_memory(bytes) : map_memory(bytes);
  staging_ = worker_->staging.get();
  *copied = HostData(staging_);
  copied_ = copied;
  staging_bytes_ = bytes;
  reserved_ = std::move(reserved);
  return staging_;
}

void AsyncSaver::prepare(const SaveRequest& request, int64_t staging_bytes) {
  wait();
  int64_t bytes = 0;
  for (const StateSlice& slice : request.slices) bytes += is_held(slice) ? 0 : slice.bytes();
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
    worker_->copying = true;
    worker_->request = std::move(request);
  }
  worker_->changed.notify_all();
  // From now on this rank takes part in a save with the other ranks. A failure is therefore passed to the saver's
  // thread, which tells the other ranks.
  try {
    copies_ != nullptr ? copy_on_device(copy) : copy_on_host(copy);
  } catch (...) {
    publish(nullptr, std::current_exception());
  }
  stretches_.clear();  // releases the SliceData that the copies have read
  {
    const std::scoped_lock lock(worker_->mutex);
    worker_->copying = false;
  }
  worker_->changed.notify_all();
}

void AsyncSaver::copy_on_host(const Copy& copy) {
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
}

// See Note [Copies of a device].
void AsyncSaver::copy_on_device(const Copy& copy) {
  copies_->in_order([&] { begin_copies(/*of_waiting_writers=*/false); }, DeviceCopies::Order::kBeforeLater);
  copies_->in_order([&] { begin_copies(/*of_waiting_writers=*/true); }, DeviceCopies::Order::kBesideLater);
  for (const Stretch& stretch : stretches_)
    if (stretch.from != nullptr) copy(stretch.to, stretch.from, stretch.bytes);
  publish(staging_ + staging_bytes_);
}

void AsyncSaver::begin_copies(bool of_waiting_writers) {
  for (const Stretch& stretch : stretches_) {
    if (stretch.from != nullptr || stretch.data->writers_wait() != of_waiting_writers) continue;
    for (int64_t at = 0; at < stretch.bytes; at += kCopyBytes) {
      stretch.data->begin_read(stretch.offset + at, std::min(kCopyBytes, stretch.bytes - at), stretch.to + at);
      publish(Mark{stretch.to + at, copies_->mark()});
    }
  }
}

// Points each slice that is not held to the bytes that it gets in the staging memory, one slice after another. Fills
// stretches_ with the copies to make. Successive slices whose sources are contiguous become one stretch, so that a few
// large copies suffice.
void AsyncSaver::relocate(std::vector<StateSlice>& slices) {
  std::byte* to = staging_;
  stretches_.clear();
  for (StateSlice& slice : slices) {
    if (is_held(slice)) continue;
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

void AsyncSaver::publish(Mark mark) {
  const std::scoped_lock lock(worker_->mutex);
  worker_->marks.push_back(std::move(mark));
}

void AsyncSaver::wait_for_copy(const void* end) {
  std::unique_lock lock(worker_->mutex);
  worker_->changed.wait(lock, [&] { return worker_->copied_until >= end || worker_->copy_error; });
  if (worker_->copy_error) std::rethrow_exception(worker_->copy_error);
  while (true) {
    std::vector<Mark>& marks = worker_->marks;
    const auto next = std::find_if(marks.begin(), marks.end(), [&](const Mark& mark) { return mark.begin < end; });
    if (next == marks.end()) return;
    const Mark mark = std::move(*next);
    marks.erase(next);
    lock.unlock();
    mark.wait();
    lock.lock();
  }
}

// See Note [Copies of a device].
void AsyncSaver::await_copies() noexcept {
  if (copies_ == nullptr) return;
  std::vector<Mark> marks;
  {
    std::unique_lock lock(worker_->mutex);
    worker_->changed.wait(lock, [&] { return !worker_->copying; });
    marks.swap(worker_->marks);
  }
  for (const Mark& mark : marks)
    attempt(
        [&] { mark.wait(); },
        [](const std::string& reason) { return "a copy for a checkpoint that was not saved failed, too: " + reason; });
}

void AsyncSaver::await_end(Worker& worker, const std::function<bool(const SaveRequest& request)>& is_awaited) {
  std::unique_lock lock(worker.mutex);
  while (!worker.changed.wait_for(lock, kLook, [&] { return !worker.request || !is_awaited(*worker.request); })) {
    lock.unlock();  // because check_interrupt() can call code that calls busy()
    check_interrupt();
    lock.lock();
  }
}

void AsyncSaver::await_end() {
  await_end(*worker_, [](const SaveRequest&) { return true; });
}

void AsyncSaver::await_saves_in(const std::string& root) {
  const auto place_of = [](const std::string& directory) {
    std::error_code error;
    const std::filesystem::path place = std::filesystem::weakly_canonical(directory, error);
    return error ? std::filesystem::path(directory) : place;  // the code that reads the directory will report the error
  };
  const std::filesystem::path place = place_of(root);
  std::vector<std::shared_ptr<Worker>> all;
  {
    const std::scoped_lock lock(workers().mutex);
    for (const Workers::Entry& entry : workers().entries)
      if (entry.process == ::getpid()) all.push_back(entry.worker.lock());
  }
  for (const std::shared_ptr<Worker>& worker : all) {
    if (!worker) continue;
    await_end(*worker, [&](const SaveRequest& request) { return place_of(request.root) == place; });
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
      tell_saved(*worker.request, save_checkpoint(*worker.request, comm_, io_));
    } catch (...) {
      error = std::current_exception();
    }
    await_copies();
    lock.lock();
    worker.error = error;
    worker.request.reset();
    worker.changed.notify_all();
  }
}

}  // namespace zeroshard
