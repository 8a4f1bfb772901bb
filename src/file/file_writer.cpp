#include <algorithm>
#include <cstring>

#include "base/align.h"
#include "base/check.h"
#include "file/background.h"
#include "file/direct_buffer.h"
#include "file/durable.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

constexpr int64_t kRunBytes = int64_t{16} << 20;  // bytes of one direct write; larger ones are not faster

// The file that is written. Each write is told its position in the file.
class WrittenFile {
 public:
  // Creates the file and reserves `expected_bytes` for it. Throws IoError if there is less space.
  WrittenFile(Directory& directory, const std::string& name, int64_t expected_bytes)
      : io_(directory.io()),
        path_(directory.path_of(name)),
        fd_(directory.create_file(name)),
        reserved_(expected_bytes) {
    reserve();
    direct_ = retry_interrupted([&] { return io_.set_direct(fd_.get(), true); }) == 0;
  }

  const std::string& path() const { return path_; }
  // Writes aligned data to an aligned position, past the page cache if the file system can.
  void write(const std::byte* data, int64_t bytes, int64_t offset) {
    write_all_direct(io_, fd_.get(), path_, data, bytes, offset, direct_);
  }
  // Writes the last data, whose size need not be aligned.
  void write_last(const std::byte* data, int64_t bytes, int64_t offset) {
    const int64_t whole = direct_ ? bytes / kDirectAlignment * kDirectAlignment : bytes;
    write(data, whole, offset);
    if (whole < bytes && direct_) {
      direct_ = false;
      check_io(retry_interrupted([&] { return io_.set_direct(fd_.get(), false); }), "write", path_);
    }
    write_all(io_, fd_.get(), path_, data + whole, bytes - whole, offset + whole);
  }
  // Frees reserved space after the first `bytes`, makes the file durable, and closes it.
  void finish(int64_t bytes) {
    if (bytes < reserved_) check_io(retry_interrupted([&] { return io_.ftruncate(fd_.get(), bytes); }), "cut", path_);
    check_io(retry_interrupted([&] { return io_.fdatasync(fd_.get()); }), "make durable", path_);
    const int closed = fd_.close();
    // If a signal interrupts close(), the file is closed nevertheless, and it is durable already.
    if (closed != -EINTR) check_io(closed, "close", path_);
  }

 private:
  void reserve() {
    if (reserved_ == 0) return;
    const int result = retry_interrupted([&] { return io_.fallocate(fd_.get(), reserved_); });
    if (result == -EOPNOTSUPP || result == -ENOSYS) {
      // The file system cannot reserve space, but it can say whether there is enough.
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

  Io& io_;
  std::string path_;
  OpenFd fd_;
  int64_t reserved_;
  bool direct_ = false;  // whether fd_ has O_DIRECT
};

}  // namespace

class FileWriter::Impl {
 public:
  Impl(Directory& directory, const std::string& name, int64_t expected_bytes)
      : file_(directory, name, expected_bytes),
        capacity_(align_up(std::clamp(expected_bytes, int64_t{1}, kBufferBytes), kDirectAlignment)),
        filling_(allocate_direct(capacity_)) {}

  void append(const std::byte* data, int64_t bytes, bool stable) {
    ZS_CHECK(state_ == State::kOpen, "append() to ", file_.path(), ", which is finished or has failed");
    try {
      if (stable) {
        lengthen_run(data, bytes);
      } else {
        end_run();
        copy(data, bytes);
      }
    } catch (...) {
      state_ = State::kFailed;
      throw;
    }
  }

  void finish() {
    ZS_CHECK(state_ == State::kOpen, "finish() of ", file_.path(), ", which is finished or has failed");
    state_ = State::kFailed;  // becomes kClosed at the end, if all goes well
    end_run();
    background_.wait();
    file_.write_last(filling_.get(), filled_, offset_);
    file_.finish(offset_ + filled_);
    state_ = State::kClosed;
  }

 private:
  enum class State { kOpen, kFailed, kClosed };

  // Adds data to the run, the next part of the file. The data of a run is contiguous in the caller's memory and is
  // written directly from there. Data that does not continue the run begins a new one, or is copied if its position in
  // memory or in the file is not aligned.
  void lengthen_run(const std::byte* data, int64_t bytes) {
    if (run_bytes_ == 0 || data != run_ + run_bytes_) {
      end_run();
      if (filled_ % kDirectAlignment != 0 || reinterpret_cast<uintptr_t>(data) % kDirectAlignment != 0)
        return copy(data, bytes);
      if (filled_ > 0) hand_over();
      run_ = data;
    }
    run_bytes_ += bytes;
    while (run_bytes_ >= kRunBytes) write_run(kRunBytes);
  }

  void end_run() {
    const int64_t whole = run_bytes_ / kDirectAlignment * kDirectAlignment;
    if (whole > 0) write_run(whole);
    copy(run_, std::exchange(run_bytes_, 0));
  }

  void write_run(int64_t bytes) {
    background_.wait();
    background_.start([this, data = run_, bytes, offset = offset_] { file_.write(data, bytes, offset); });
    offset_ += bytes;
    run_ += bytes;
    run_bytes_ -= bytes;
  }

  void copy(const std::byte* data, int64_t bytes) {
    while (bytes > 0) {
      if (filled_ == capacity_) hand_over();
      const int64_t size = std::min(bytes, capacity_ - filled_);
      std::memcpy(filling_.get() + filled_, data, size_t(size));
      filled_ += size;
      data += size;
      bytes -= size;
    }
  }

  // Waits until the thread has ended its current write, and lets the thread write the filled buffer.
  void hand_over() {
    background_.wait();
    std::swap(filling_, writing_);
    if (!filling_) filling_ = allocate_direct(capacity_);
    background_.start([this, size = filled_, offset = offset_] { file_.write(writing_.get(), size, offset); });
    offset_ += filled_;
    filled_ = 0;
  }

  WrittenFile file_;  // only the thread uses it while the thread has a job
  int64_t capacity_;
  DirectBuffer filling_, writing_;
  int64_t filled_ = 0;
  const std::byte* run_ = nullptr;
  int64_t run_bytes_ = 0;  // run_bytes_ and filled_ are never both above 0
  int64_t offset_ = 0;     // the position in the file of the first byte of filling_, or of the run
  State state_ = State::kOpen;
  Background background_;  // the last member, because its thread must end before the members that the thread uses
};

FileWriter::FileWriter(Directory& directory, const std::string& name, int64_t expected_bytes) {
  ZS_CHECK(expected_bytes >= 0, "expected_bytes must not be negative, got ", expected_bytes);
  impl_ = std::make_unique<Impl>(directory, name, expected_bytes);
}

FileWriter::~FileWriter() = default;

void FileWriter::append(const void* data, int64_t bytes) {
  ZS_CHECK(bytes >= 0, "bytes must not be negative, got ", bytes);
  impl_->append(static_cast<const std::byte*>(data), bytes, false);
}

void FileWriter::append_stable(const void* data, int64_t bytes) {
  ZS_CHECK(bytes >= 0, "bytes must not be negative, got ", bytes);
  impl_->append(static_cast<const std::byte*>(data), bytes, true);
}

void FileWriter::finish() {
  impl_->finish();
}

}  // namespace zeroshard
