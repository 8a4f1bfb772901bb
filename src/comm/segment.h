#pragma once
#include <cstddef>
#include <cstdint>

namespace zeroshard {

// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept;
  int get() const { return fd_; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// An owned mapping of memory.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory that other processes of this user can map, if they know a pair (pid, descriptor). The memory has no name, so
// nothing of it remains when the processes have ended, however they end. All functions throw CommError with the reason
// if they fail.

// Creates an anonymous file of `bytes` zeros, whose size is sealed. A page takes no memory before it is touched.
Fd create_shared(size_t bytes);
uint64_t inode_of(const Fd& fd);
// Opens descriptor `fd` of process `pid`. Throws CommError if the descriptor is not the file `inode`.
Fd open_peer(int32_t pid, int fd, uint64_t inode);
// Maps the first `bytes` of the file. If `bytes` is 0, returns an empty mapping.
Mapping map_shared(const Fd& fd, size_t bytes, bool writable);

}  // namespace zeroshard
