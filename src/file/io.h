#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zeroshard {

struct FileStatus {
  enum class Kind { kRegular, kDirectory, kOther };
  Kind kind = Kind::kOther;
  int64_t size = 0;
  uint64_t device = 0, inode = 0;  // together they identify the file, whatever its name is
};

// The system calls for files. They are an interface, so that tests can make any of them fail. Each function tries once
// to do what its name says. It returns a result that is not negative, or -errno. The callers (Directory, FileWriter,
// FileReader) repeat interrupted calls, continue short reads and writes, and throw. Any number of threads may call the
// functions at a time.
//
// Names passed to *_at functions are relative to the directory `dir`. They must not contain "..", which Directory
// checks. The functions refuse an absolute name, and follow no symbolic link (-EXDEV, -ELOOP, -ENOTDIR or -ENOENT).
// exec() closes all descriptors that these functions return.
class Io {
 public:
  virtual ~Io() = default;

  virtual int open_dir(const std::string& path) = 0;  // any path; links are followed, because a user chose the path
  virtual int open_dir_at(int dir, const std::string& name) = 0;
  // Opens a file for reading. Returns -EISDIR for a directory, and -EINVAL or -ENXIO, without waiting, for a FIFO, a
  // device or a socket.
  virtual int open_at(int dir, const std::string& name) = 0;
  // Creates a file and opens it for writing. Returns -EEXIST if the name exists.
  virtual int create_at(int dir, const std::string& name) = 0;
  // Opens a file for reading and writing, and creates it if it is missing. Returns the errors of open_at().
  virtual int open_or_create_at(int dir, const std::string& name) = 0;
  // Creates a file without a name in `dir`, with mode 0600, and opens it for reading and writing. The file is deleted
  // when its descriptor is closed. Returns -EOPNOTSUPP if the file system does not support this.
  virtual int create_unnamed(int dir) = 0;
  virtual int mkdir(const std::string& path) = 0;
  virtual int mkdir_at(int dir, const std::string& name) = 0;
  virtual int close(int fd) = 0;

  virtual int64_t pread(int fd, void* data, size_t bytes, int64_t offset) = 0;
  virtual int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) = 0;
  // Reserves space for the first `bytes` bytes. The file then has at least that size.
  virtual int fallocate(int fd, int64_t bytes) = 0;
  virtual int ftruncate(int fd, int64_t bytes) = 0;
  virtual int fdatasync(int fd) = 0;
  virtual int fsync(int fd) = 0;
  // Locks the file without waiting. Returns -EAGAIN while a descriptor from another opening of the file has the lock.
  // Copies of `fd` in forked children have the same lock. The lock ends when `fd` and all copies are closed, also if
  // they are closed because processes end. Returns -ENOLCK, -ENOSYS or -EOPNOTSUPP if the file system has no locks.
  virtual int lock(int fd) = 0;
  // Turns O_DIRECT on or off. Returns -EINVAL if the file system does not support it.
  virtual int set_direct(int fd, bool direct) = 0;
  virtual int advise_sequential(int fd) = 0;

  virtual int fstat(int fd, FileStatus& status) = 0;
  virtual int stat_at(int dir, const std::string& name, FileStatus& status) = 0;  // does not follow a link
  virtual int64_t free_bytes(int fd) = 0;  // free space of the file system that this user can get
  virtual bool is_in_memory(int fd) = 0;   // whether the file system is a tmpfs or ramfs; false after an error
  virtual int list(int dir, std::vector<std::string>& names) = 0;                      // without "." and ".."
  virtual int rename_at(int dir, const std::string& from, const std::string& to) = 0;  // replaces `to` if it exists
  virtual int exchange_at(int dir, const std::string& one, const std::string& other) = 0;
  // Deletes a file or a link itself. Returns -EISDIR for a directory.
  virtual int unlink_at(int dir, const std::string& name) = 0;
  virtual int rmdir_at(int dir, const std::string& name) = 0;
};

// Returns the Io of the operating system. It creates private files (mode 0600) and directories (0700).
Io& posix_io();
// Returns an Io whose files and directories have modes 0666 and 0777, so that the umask decides which other users may
// use them.
Io& shared_posix_io();

// Says what confines names to their directory: the kernel (openat2), or code that opens one component after another. If
// the kernel has no openat2, kKernel works like kByComponent.
enum class Confinement { kKernel, kByComponent };
std::unique_ptr<Io> make_posix_io(Confinement confinement);

// Calls `call` and returns its result. Repeats the call while it returns -EINTR, but makes at most 1000 calls.
template <typename Call>
auto retry_interrupted(const Call& call) {
  constexpr int kMaxTries = 1000;
  auto result = call();
  for (int tries = 1; result == -EINTR && tries < kMaxTries; ++tries) result = call();
  return result;
}

// An open file descriptor of an Io. The destructor closes it.
class OpenFd {
 public:
  OpenFd() = default;
  OpenFd(Io& io, int fd) : io_(&io), fd_(fd) {}
  ~OpenFd() { close(); }
  OpenFd(OpenFd&& other) noexcept : io_(other.io_), fd_(std::exchange(other.fd_, -1)) {}
  OpenFd& operator=(OpenFd&& other) noexcept {
    if (this != &other) {
      close();
      io_ = other.io_;
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Closes the descriptor, if there is one. Returns 0 or -errno. The descriptor is closed in both cases.
  int close() noexcept { return fd_ < 0 ? 0 : io_->close(std::exchange(fd_, -1)); }

 private:
  Io* io_ = nullptr;
  int fd_ = -1;
};

// Throws IoError "cannot OPERATION PATH: REASON[; DETAILS][. ADVICE]". `result` is the -errno that a call returned.
[[noreturn]] void throw_io_error(std::string_view operation, std::string_view path, int64_t result,
                                 std::string_view details = {});

// Throws IoError if `result` is negative.
inline void check_io(int64_t result, std::string_view operation, std::string_view path) {
  if (result < 0) throw_io_error(operation, path, result);
}

}  // namespace zeroshard
