#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/align.h"
#include "base/check.h"
#include "file/durable.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

constexpr int64_t kAlignment = 4096;  // O_DIRECT's, of memory, offset and length, on any usual device

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<std::byte, FreeMemory>;

Buffer allocate_buffer(int64_t bytes) {
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(size_t{kAlignment}, size_t(bytes))));
  if (!buffer) throw std::bad_alloc();
  return buffer;
}

// A thread that runs one job at a time; it is started by the first.
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

  // After wait() alone.
  void start(std::function<void()> job) {
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread([this] { run(); });
      } catch (const std::system_error&) {
        return job();  // the process may have no more threads: slower, but written
      }
    }
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    changed_.notify_all();
  }

  // Until the job is done. Throws what it threw, each time.
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
  std::function<void()> job_;  // empty: none
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

class FileWriter::Impl {
 public:
  Impl(Directory& directory, const std::string& name, int64_t expected_bytes)
      : io_(directory.io()),
        path_(directory.path_of(name)),
        fd_(directory.create_file(name)),
        reserved_(expected_bytes),
        capacity_(align_up(std::clamp(expected_bytes, int64_t{1}, kBufferBytes), kAlignment)),
        filling_(allocate_buffer(capacity_)) {
    reserve();
    direct_ = retry_interrupted([&] { return io_.set_direct(fd_.get(), true); }) == 0;
  }

  void append(const std::byte* data, int64_t bytes) {
    ZS_CHECK(state_ == State::kOpen, "append() to ", path_, ", which is finished or has failed");
    try {
      while (bytes > 0) {
        if (filled_ == capacity_) hand_over();
        const int64_t size = std::min(bytes, capacity_ - filled_);
        std::memcpy(filling_.get() + filled_, data, size_t(size));
        filled_ += size;
        data += size;
        bytes -= size;
      }
    } catch (...) {
      state_ = State::kFailed;
      throw;
    }
  }

  void finish() {
    ZS_CHECK(state_ == State::kOpen, "finish() of ", path_, ", which is finished or has failed");
    state_ = State::kFailed;  // until it has succeeded
    background_.wait();
    write_rest();
    if (offset_ < reserved_)
      check_io(retry_interrupted([&] { return io_.ftruncate(fd_.get(), offset_); }), "cut", path_);
    check_io(retry_interrupted([&] { return io_.fdatasync(fd_.get()); }), "make durable", path_);
    const int closed = fd_.close();
    if (closed != -EINTR) check_io(closed, "close", path_);  // interrupted: closed and, by then, durable
    state_ = State::kClosed;
  }

 private:
  enum class State { kOpen, kFailed, kClosed };

  void reserve() {
    if (reserved_ == 0) return;
    const int result = retry_interrupted([&] { return io_.fallocate(fd_.get(), reserved_); });
    if (result == -EOPNOTSUPP || result == -ENOSYS) {
      // The file system cannot reserve, but it can tell whether there is hope.
      const int64_t free = io_.free_bytes(fd_.get());
      if (free >= 0 && free < reserved_) fail_reserve(-ENOSPC);
      reserved_ = 0;
    } else if (result < 0) {
      fail_reserve(result);
    }
  }

  [[noreturn]] void fail_reserve(int result) {
    const std::string full = space_details(io_, fd_.get(), result, reserved_);
    throw_io_error("reserve space for", path_, result, full.empty() ? concat("it needs ", reserved_, " bytes") : full);
  }

  // Gives the full buffer to the thread, as soon as that is done with the other one.
  void hand_over() {
    background_.wait();
    std::swap(filling_, writing_);
    if (!filling_) filling_ = allocate_buffer(capacity_);
    background_.start([this, size = filled_, offset = offset_] {
      write_all_direct(io_, fd_.get(), path_, writing_.get(), size, offset, direct_);
    });
    offset_ += filled_;
    filled_ = 0;
  }

  void write_rest() {
    const int64_t whole = direct_ ? filled_ / kAlignment * kAlignment : filled_;
    write_all_direct(io_, fd_.get(), path_, filling_.get(), whole, offset_, direct_);
    if (whole < filled_ && direct_) {
      direct_ = false;
      check_io(retry_interrupted([&] { return io_.set_direct(fd_.get(), false); }), "write", path_);
    }
    write_all(io_, fd_.get(), path_, filling_.get() + whole, filled_ - whole, offset_ + whole);
    offset_ += filled_;
    filled_ = 0;
  }

  Io& io_;
  std::string path_;
  OpenFd fd_;
  int64_t reserved_;
  int64_t capacity_;
  Buffer filling_, writing_;
  int64_t filled_ = 0;
  int64_t offset_ = 0;   // in the file, of the first byte of filling_
  bool direct_ = false;  // of fd_; the thread's while it has a job
  State state_ = State::kOpen;
  Background background_;  // last: its thread ends before what it uses
};

FileWriter::FileWriter(Directory& directory, const std::string& name, int64_t expected_bytes) {
  ZS_CHECK(expected_bytes >= 0, "expected_bytes must not be negative, got ", expected_bytes);
  impl_ = std::make_unique<Impl>(directory, name, expected_bytes);
}

FileWriter::~FileWriter() = default;

void FileWriter::append(const void* data, int64_t bytes) {
  ZS_CHECK(bytes >= 0, "bytes must not be negative, got ", bytes);
  impl_->append(static_cast<const std::byte*>(data), bytes);
}

void FileWriter::finish() {
  impl_->finish();
}

}  // namespace zeroshard
