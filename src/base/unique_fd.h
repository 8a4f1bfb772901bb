#pragma once
#include <unistd.h>

#include <utility>

namespace zeroshard {

// An owned file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read_end, write_end;  // both are closed by exec()
};

// Creates a pipe. Throws Error if that fails, for example because the process has no descriptors left.
Pipe make_pipe();

// Makes read() and write() fail with EAGAIN where they would otherwise wait.
void set_nonblocking(int fd);

// Throws Error with the text "<what>: <reason>", where the reason comes from errno.
[[noreturn]] void throw_errno(const char* what);

}  // namespace zeroshard
