#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

namespace zeroshard {

// A thread that runs one job at a time. The first call of start() starts the thread. The destructor waits for a running
// job.
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

  // Starts a job and returns before the job is done. The previous job must be done; wait() waits for it. If the system
  // refuses to start the thread, the job runs within this call. start() never throws what the job throws; wait() does.
  void start(std::function<void()> job) {
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread([this] { run(); });
      } catch (const std::system_error&) {
        // The calling thread runs the job, because otherwise nobody would run it.
        return keep_error(job);
      }
    }
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    changed_.notify_all();
    std::this_thread::yield();  // lets the job begin before the caller continues, if both share a core
  }

  // Waits until the job is done. If a job has thrown an exception, this call and every later one throw the latest such
  // exception. Calls `while_waiting`, if there is one, about ten times a second. An exception from `while_waiting` ends
  // the wait, but not the job.
  void wait(const std::function<void()>& while_waiting = {}) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !job_; })) {
      if (!while_waiting) continue;
      lock.unlock();
      while_waiting();
      lock.lock();
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void keep_error(const std::function<void()>& job) {
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (error) error_ = error;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return job_ || stopping_; });
      if (!job_) return;
      lock.unlock();
      keep_error(job_);
      lock.lock();
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
