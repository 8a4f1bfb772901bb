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
  uint64_t device = 0, inode = 0;  // together they identify the file, whatever its name
};

// The system calls for files, so that tests can make any of them fail. Each makes the call of its name once and returns
// its result or -errno. Retrying, continuing and throwing is up to the callers (Directory, FileWriter, FileReader). Any
// number of threads may call it.
//
// Names passed to *_at functions are relative and stay below the directory: a name that is absolute, contains "..", or
// crosses a symbolic link is refused (-EXDEV or -ELOOP). Everything is closed on exec.
class Io {
 public:
  virtual ~Io() = default;

  virtual int open_dir(const std::string& path) = 0;  // any path, links are followed: the user chose it
  virtual int open_dir_at(int dir, const std::string& name) = 0;
  virtual int open_at(int dir, const std::string& name) = 0;    // for reading; a regular file, else -EINVAL at once
  virtual int create_at(int dir, const std::string& name) = 0;  // for writing; -EEXIST when it is there
  // For reading and writing; created if it is missing. A regular file, else -EINVAL at once.
  virtual int open_or_create_at(int dir, const std::string& name) = 0;
  // For reading and writing; for this user alone, without a name: the file ends with its descriptor. -EOPNOTSUPP: the
  // file system has none.
  virtual int create_unnamed(int dir) = 0;
  virtual int mkdir(const std::string& path) = 0;
  virtual int mkdir_at(int dir, const std::string& name) = 0;
  virtual int close(int fd) = 0;

  virtual int64_t pread(int fd, void* data, size_t bytes, int64_t offset) = 0;
  virtual int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) = 0;
  virtual int fallocate(int fd, int64_t bytes) = 0;  // from the start; the file then has that size
  virtual int ftruncate(int fd, int64_t bytes) = 0;
  virtual int fdatasync(int fd) = 0;
  virtual int fsync(int fd) = 0;
  // Locks the file for this descriptor, without waiting: -EAGAIN while another descriptor has the lock. It ends when
  // the descriptor is closed, also by the process's death. -ENOLCK, -ENOSYS or -EOPNOTSUPP: there are no locks.
  virtual int lock(int fd) = 0;
  virtual int set_direct(int fd, bool direct) = 0;  // O_DIRECT on or off; -EINVAL where the file system has none
  virtual int advise_sequential(int fd) = 0;

  virtual int fstat(int fd, FileStatus& status) = 0;
  virtual int stat_at(int dir, const std::string& name, FileStatus& status) = 0;  // of a link itself
  virtual int64_t free_bytes(int fd) = 0;                                         // of the file system, for this user
  virtual bool is_in_memory(int fd) = 0;                                          // of the file system: a tmpfs
  virtual int list(int dir, std::vector<std::string>& names) = 0;                 // without "." and ".."
  virtual int rename_at(int dir, const std::string& from, const std::string& to) = 0;  // replaces a file `to`
  virtual int exchange_at(int dir, const std::string& one, const std::string& other) = 0;
  virtual int unlink_at(int dir, const std::string& name) = 0;  // -EISDIR for a directory
  virtual int rmdir_at(int dir, const std::string& name) = 0;
};

// The operating system's own. What it creates is private: files have mode 0600, directories 0700.
Io& posix_io();
// The same for what is meant for others, too: the umask says who may read what it creates.
Io& shared_posix_io();

// How names are confined to their directory: by the kernel (openat2), or component by component. posix_io() uses the
// latter if the kernel has no openat2.
enum class Confinement { kKernel, kByComponent };
std::unique_ptr<Io> make_posix_io(Confinement confinement);

// Repeats the call while a signal interrupts it; not for ever.
template <typename Call>
auto retry_interrupted(const Call& call) {
  constexpr int kMaxTries = 1000;
  auto result = call();
  for (int tries = 1; result == -EINTR && tries < kMaxTries; ++tries) result = call();
  return result;
}

// An open file descriptor of an Io; closed on destruction.
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
  // Returns 0 or -errno; the descriptor is gone either way.
  int close() noexcept { return fd_ < 0 ? 0 : io_->close(std::exchange(fd_, -1)); }

 private:
  Io* io_ = nullptr;
  int fd_ = -1;
};

// Throws IoError "cannot OPERATION PATH: reason[, advice]" for the -errno that a call returned.
[[noreturn]] void throw_io_error(std::string_view operation, std::string_view path, int64_t result,
                                 std::string_view details = {});

// Throws IoError if `result` is negative.
inline void check_io(int64_t result, std::string_view operation, std::string_view path) {
  if (result < 0) throw_io_error(operation, path, result);
}

}  // namespace zeroshard
