#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "file/io.h"

namespace zeroshard {
namespace {

struct Modes {
  mode_t file, directory;  // permissions before the umask is applied
};
constexpr Modes kPrivate{0600, 0700}, kShared{0666, 0777};

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
constexpr int kNotFollowed = O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;

int result_of(int result) {
  return result < 0 ? -errno : result;
}
int64_t result_of(ssize_t result) {
  return result < 0 ? -errno : int64_t{result};
}

// Returns whether a file that ends at `end` would exceed the limit of file sizes. Must be checked before a write,
// because the kernel answers a write beyond the limit with a signal that ends the process.
bool exceeds_limit(int64_t end) {
  struct rlimit limit;
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && rlim_t(end) > limit.rlim_cur;
}

FileStatus status_of(const struct stat& found) {
  using Kind = FileStatus::Kind;
  return {S_ISREG(found.st_mode)   ? Kind::kRegular
          : S_ISDIR(found.st_mode) ? Kind::kDirectory
                                   : Kind::kOther,
          int64_t{found.st_size}, uint64_t{found.st_dev}, uint64_t{found.st_ino}};
}

class RawFd {
 public:
  explicit RawFd(int fd) : fd_(fd) {}
  ~RawFd() { reset(-1); }
  RawFd(const RawFd&) = delete;
  RawFd& operator=(const RawFd&) = delete;
  int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// Opens `name` component by component, each below the previous one. No component may be a link. Returns -EXDEV if a
// component is empty, "." or "..".
int open_by_component(int dir, const std::string& name, int flags, mode_t mode) {
  RawFd parent(-1);
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string component = name.substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..") return -EXDEV;
    const int below = parent.get() < 0 ? dir : parent.get();
    if (end == name.size()) return result_of(::openat(below, component.c_str(), flags | O_NOFOLLOW, mode));
    const int next = ::openat(below, component.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (next < 0) return -errno;
    parent.reset(next);
    begin = end + 1;
  }
}

class PosixIo final : public Io {
 public:
  PosixIo(Confinement confinement, Modes modes) : confinement_(confinement), modes_(modes) {}

  int open_dir(const std::string& path) override { return result_of(::open(path.c_str(), kOpenDirectory)); }
  int open_dir_at(int dir, const std::string& name) override { return open_beneath(dir, name, kOpenDirectory); }

  int open_at(int dir, const std::string& name) override {
    // O_NONBLOCK is set because otherwise the opening of a FIFO would wait for a writer forever.
    return regular(open_beneath(dir, name, O_RDONLY | O_NONBLOCK | kNotFollowed));
  }

  int create_at(int dir, const std::string& name) override {
    return open_beneath(dir, name, O_WRONLY | O_CREAT | O_EXCL | kNotFollowed, modes_.file);
  }
  int open_or_create_at(int dir, const std::string& name) override {
    return regular(open_beneath(dir, name, O_RDWR | O_CREAT | O_NONBLOCK | kNotFollowed, modes_.file));
  }
  int create_unnamed(int dir) override {
    const int fd = result_of(::openat(dir, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
    // Kernels that do not support O_TMPFILE return one of these two errors.
    return fd == -EISDIR || fd == -ENOENT ? -EOPNOTSUPP : fd;
  }
  int mkdir(const std::string& path) override { return result_of(::mkdir(path.c_str(), modes_.directory)); }
  int mkdir_at(int dir, const std::string& name) override {
    return in_parent(dir, name,
                     [this](int parent, const char* last) { return ::mkdirat(parent, last, modes_.directory); });
  }
  int close(int fd) override { return result_of(::close(fd)); }

  int64_t pread(int fd, void* data, size_t bytes, int64_t offset) override {
    return result_of(::pread(fd, data, bytes, offset));
  }
  int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) override {
    if (bytes > 0 && exceeds_limit(offset + 1)) return -EFBIG;
    return result_of(::pwrite(fd, data, bytes, offset));
  }
  int fallocate(int fd, int64_t bytes) override {
    return exceeds_limit(bytes) ? -EFBIG : result_of(::fallocate(fd, 0, 0, bytes));
  }
  int ftruncate(int fd, int64_t bytes) override {
    return exceeds_limit(bytes) ? -EFBIG : result_of(::ftruncate(fd, bytes));
  }
  int fdatasync(int fd) override { return result_of(::fdatasync(fd)); }
  int fsync(int fd) override { return result_of(::fsync(fd)); }

  int lock(int fd) override {
    // The lock belongs to the open file and not to the process, so it stays when another descriptor of the file is
    // closed.
    struct flock whole {};
    whole.l_type = F_WRLCK;
    const int result = result_of(::fcntl(fd, F_OFD_SETLK, &whole));
    if (result == -EACCES) return -EAGAIN;
    // Kernels that are too old for F_OFD_SETLK have flock(), whose locks also belong to the open file.
    return result == -EINVAL ? result_of(::flock(fd, LOCK_EX | LOCK_NB)) : result;
  }
  int set_direct(int fd, bool direct) override {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0) return -errno;
    return result_of(::fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT));
  }
  int advise_sequential(int fd) override { return -::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); }

  int fstat(int fd, FileStatus& status) override {
    struct stat found;
    if (::fstat(fd, &found) != 0) return -errno;
    status = status_of(found);
    return 0;
  }
  int stat_at(int dir, const std::string& name, FileStatus& status) override {
    struct stat found;
    const int result = in_parent(
        dir, name, [&](int parent, const char* last) { return ::fstatat(parent, last, &found, AT_SYMLINK_NOFOLLOW); });
    if (result == 0) status = status_of(found);
    return result;
  }
  int64_t free_bytes(int fd) override {
    struct statvfs found;
    return ::fstatvfs(fd, &found) != 0 ? -errno : int64_t(found.f_bavail * found.f_frsize);
  }
  bool is_in_memory(int fd) override {
    struct statfs found;
    return ::fstatfs(fd, &found) == 0 && (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
  }

  int list(int dir, std::vector<std::string>& names) override {
    const int fd = ::openat(dir, ".", kOpenDirectory);
    if (fd < 0) return -errno;
    DIR* const stream = ::fdopendir(fd);
    if (stream == nullptr) {
      const int result = -errno;
      ::close(fd);
      return result;
    }
    names.clear();
    errno = 0;
    while (const dirent* const entry = ::readdir(stream)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int result = -errno;
    ::closedir(stream);
    return result;
  }

  int rename_at(int dir, const std::string& from, const std::string& to) override { return move(dir, from, to, 0); }
  int exchange_at(int dir, const std::string& one, const std::string& other) override {
    return move(dir, one, other, RENAME_EXCHANGE);
  }
  int unlink_at(int dir, const std::string& name) override {
    return in_parent(dir, name, [](int parent, const char* last) { return ::unlinkat(parent, last, 0); });
  }
  int rmdir_at(int dir, const std::string& name) override {
    return in_parent(dir, name, [](int parent, const char* last) { return ::unlinkat(parent, last, AT_REMOVEDIR); });
  }

 private:
  // Returns `fd` if it is a regular file or negative. Otherwise closes it and returns -EISDIR for a directory, -EINVAL
  // for anything else.
  static int regular(int fd) {
    if (fd < 0) return fd;
    struct stat found;
    int result = result_of(::fstat(fd, &found));
    if (result == 0 && !S_ISREG(found.st_mode)) result = S_ISDIR(found.st_mode) ? -EISDIR : -EINVAL;
    if (result == 0) return fd;
    ::close(fd);
    return result;
  }

  int open_beneath(int dir, const std::string& name, int flags, mode_t mode = 0) {
    if (confinement_ == Confinement::kKernel) {
      struct open_how how {};
      how.flags = uint64_t(flags);
      how.mode = mode;
      how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
      const int fd = result_of(int(::syscall(SYS_openat2, dir, name.c_str(), &how, sizeof(how))));
      // A sandbox can answer a system call that it does not know with -EPERM, so -EPERM means the same as -ENOSYS.
      if (fd != -ENOSYS && fd != -EPERM) return fd;
    }
    return open_by_component(dir, name, flags, mode);
  }

  // Opens the directory to which all components of `name` but the last one lead, and calls call(directory, last
  // component). A negative result of `call` means that errno is set. Returns the result or -errno.
  template <typename Call>
  int in_parent(int dir, const std::string& name, const Call& call) {
    const size_t slash = name.rfind('/');
    if (slash == std::string::npos) return result_of(call(dir, name.c_str()));
    const int fd = open_beneath(dir, name.substr(0, slash), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return fd;
    const RawFd parent(fd);
    return result_of(call(parent.get(), name.c_str() + slash + 1));
  }

  int move(int dir, const std::string& from, const std::string& to, unsigned flags) {
    return in_parent(dir, from, [&](int from_parent, const char* from_last) {
      const int result = in_parent(dir, to, [&](int to_parent, const char* to_last) {
        return ::renameat2(from_parent, from_last, to_parent, to_last, flags);
      });
      if (result < 0) errno = -result;
      return result < 0 ? -1 : result;
    });
  }

  Confinement confinement_;
  Modes modes_;
};

}  // namespace

Io& posix_io() {
  static PosixIo io(Confinement::kKernel, kPrivate);  // never changes, so all callers can share it
  return io;
}

Io& shared_posix_io() {
  static PosixIo io(Confinement::kKernel, kShared);
  return io;
}

std::unique_ptr<Io> make_posix_io(Confinement confinement) {
  return std::make_unique<PosixIo>(confinement, kPrivate);
}

}  // namespace zeroshard
