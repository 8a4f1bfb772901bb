#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

namespace zeroshard {

// A thread that runs one job at a time; the first job starts it.
class Background {
 public:
  ~Background() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Only after wait().
  void start(std::function<void()> job) {
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread([this] { run(); });
      } catch (const std::system_error&) {
        return job();  // the process may not get another thread: this is slower, but the data are written
      }
    }
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    changed_.notify_all();
    std::this_thread::yield();  // on a shared core, the device gets its work before the caller continues
  }

  // Waits until the job is done. Throws the job's exception, each time.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !job_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return job_ || stopping_; });
      if (!job_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        job_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
      job_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // empty: no job
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace zeroshard
