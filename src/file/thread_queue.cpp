#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "file/block_queue.h"

namespace zeroshard {
namespace {

class ThreadQueue final : public BlockQueue {
 public:
  ThreadQueue(const QueueFiles& files, Io& io, int threads) : io_(io), fds_(files.fds) {
    for (int i = 0; i < std::min(threads, files.depth); ++i) {
      try {
        threads_.emplace_back([this] { run(); });
      } catch (const std::system_error&) {
        break;  // the system refuses more threads, so the queue works with fewer
      }
    }
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }

  void start(std::span<const BlockRequest> requests) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    }
    if (threads_.empty()) {
      while (!waiting_.empty()) serve_next();
    }
    work_.notify_all();
  }

  int collect(bool wait, std::vector<BlockResult>& results) override {
    std::unique_lock lock(mutex_);
    if (wait) done_.wait(lock, [&] { return !results_.empty(); });
    results.insert(results.end(), results_.begin(), results_.end());
    results_.clear();
    return 0;
  }

 private:
  int64_t transfer(const BlockRequest& request) {
    const int fd = fds_.at(request.file);
    return request.kind == BlockRequest::Kind::kRead
               ? io_.pread(fd, request.data, size_t(request.bytes), request.offset)
               : io_.pwrite(fd, request.data, size_t(request.bytes), request.offset);
  }

  void serve_next() {
    const BlockRequest request = waiting_.front();
    waiting_.pop_front();
    results_.push_back({request.tag, transfer(request)});
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return !waiting_.empty() || stopping_; });
      if (waiting_.empty()) return;
      const BlockRequest request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int64_t result = transfer(request);
      lock.lock();
      results_.push_back({request.tag, result});
      done_.notify_one();
    }
  }

  Io& io_;
  std::vector<int> fds_;
  std::mutex mutex_;  // protects waiting_, results_ and stopping_
  std::condition_variable work_, done_;
  std::deque<BlockRequest> waiting_;
  std::vector<BlockResult> results_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // the last member, because the threads use the members above
};

}  // namespace

std::unique_ptr<BlockQueue> make_thread_queue(const QueueFiles& files, Io& io, int threads) {
  ZS_CHECK(threads >= 1, "a queue needs a thread, got ", threads);
  return std::make_unique<ThreadQueue>(files, io, threads);
}

std::unique_ptr<BlockQueue> make_block_queue(const QueueFiles& files, RingSystem* ring, Io& io, int threads) {
  int why = 0;
  auto queue = ring != nullptr ? make_ring_queue(files, *ring, why) : nullptr;
  return queue ? std::move(queue) : make_thread_queue(files, io, threads);
}

}  // namespace zeroshard
