#include "file/directory_lock.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/host_name.h"
#include "base/process_name.h"
#include "file/shown.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

constexpr int64_t kMaxTextBytes = 4096;
constexpr int kMaxLockTries = 100;

// The holder of a lock, as the file describes it. The members are empty if the file has fewer than three lines.
struct Holder {
  std::string host, pid, process;  // `process` is a name that process_name() made
};

std::string text_of_this_process() {
  return concat(host_name(), "\n", ::getpid(), "\n", process_name(), "\n");
}

// Reads the holder from the file. Any program can have written the text, and the text can be incomplete. Errors of the
// file count as no text.
Holder read_holder(Io& io, int fd) {
  std::string text(size_t(kMaxTextBytes), '\0');
  const int64_t bytes = retry_interrupted([&] { return io.pread(fd, text.data(), text.size(), 0); });
  text.resize(size_t(std::max<int64_t>(bytes, 0)));
  std::vector<std::string> lines;
  for (size_t at = 0, end = 0; lines.size() < 3 && (end = text.find('\n', at)) != text.npos; at = end + 1)
    lines.push_back(shown(std::string_view(text).substr(at, end - at)));
  if (lines.size() < 3) return {};
  return {lines[0], lines[1], lines[2]};
}

[[noreturn]] void throw_in_use(const Directory& directory, const Holder& holder, std::string_view advice) {
  const bool known = !holder.pid.empty(), here = known && is_of_this_host(holder.process);
  throw IoError(concat(
      directory.path(), " is in use by ",
      known ? concat("process ", holder.pid, " on host '", holder.host, "'") : "another process", ". ", advice,
      here ? std::string()
           : concat(". When that process or its host is no more, delete ", directory.path_of(DirectoryLock::kName))));
}

bool is_unsupported(int result) {
  return result == -ENOLCK || result == -ENOSYS || result == -EOPNOTSUPP;
}

}  // namespace

// The one kernel lock that this process has on a directory. All DirectoryLocks of the directory share it.
struct DirectoryLock::Held {
  Held(Directory where, OpenFd locked, FileStatus file, bool sure)
      : directory(std::move(where)), fd(std::move(locked)), status(file), is_sure(sure) {}
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Deletes the file. Does nothing in a forked child, or if the name kName leads to another file now, because that file
  // belongs to another process.
  void delete_file() const;
  bool is_file(const FileStatus& other) const { return other.device == status.device && other.inode == status.inode; }

  Directory directory;
  OpenFd fd;
  FileStatus status;  // of the file when it was locked
  bool is_sure;
  pid_t process = ::getpid();
  std::mutex using_it;
  int64_t turns = 0;
  bool shared = false;  // whether the last turn was taken with `share`
};

// All locks of this process. They are kept in one object so that users of one directory find the lock that the process
// has already. A kernel lock belongs to one opening of the file. If this process opened the file again, the kernel
// would refuse it a second lock.
class HeldLocks {
 public:
  static HeldLocks& of_this_process() {
    static HeldLocks& all = *new HeldLocks;  // never destroyed, because a static DirectoryLock can live longer
    return all;
  }

  std::shared_ptr<DirectoryLock::Held> get(Io& io, const std::string& path, std::string_view advice) {
    const std::lock_guard lock(mutex_);
    // At exit, deletes the files of locks that are never destroyed. Exit handlers and destructors of static objects run
    // in the reverse order of their registration. This handler is registered after the first `io` was made, so it runs
    // before that `io` is destroyed.
    [[maybe_unused]] static const int kRegistered = std::atexit([] { of_this_process().delete_files(); });
    for (int tries = 0; tries < kMaxLockTries; ++tries)
      if (auto held = try_once(io, path, advice)) return held;
    throw IoError(concat("cannot lock ", path, ": its file ", DirectoryLock::kName, " is replaced again and again"));
  }

  // Drops a reference to the lock. If it is the last one, the lock is released under the mutex, so that no thread of
  // this process opens the file while it is being deleted.
  void drop(std::shared_ptr<DirectoryLock::Held> held) {
    const std::lock_guard lock(mutex_);
    held.reset();
    std::erase_if(held_, [](const auto& each) { return each.expired(); });
  }

  void delete_files();

 private:
  // Registers handlers for fork(). A forked child has copies of the descriptors, which would keep the locks after the
  // parent's death, so the child closes those of posix_io(). The child also forgets all locks.
  HeldLocks() {
    ::pthread_atfork([] { of_this_process().mutex_.lock(); }, [] { of_this_process().mutex_.unlock(); },
                     [] {
                       HeldLocks& all = of_this_process();
                       for (const auto& each : all.held_)
                         if (const auto held = each.lock(); held && &held->directory.io() == &posix_io())
                           held->fd.close();
                       all.held_.clear();
                       all.mutex_.unlock();
                     });
  }

  // Takes the lock, or returns the lock that this process already has. Returns null if the file was deleted or replaced
  // during the call. Throws IoError with `advice` if another process has the lock.
  std::shared_ptr<DirectoryLock::Held> try_once(Io& io, const std::string& path, std::string_view advice) {
    Directory directory = Directory::create(io, path);
    const std::string name(DirectoryLock::kName), file = directory.path_of(name);
    const int opened = retry_interrupted([&] { return io.open_or_create_at(directory.fd(), name); });
    if (opened == -EINVAL || opened == -EISDIR || opened == -ENXIO)
      throw IoError(concat("cannot lock ", directory.path(), ": ", file, " is not a regular file: move it away"));
    check_io(opened, "lock", file);
    OpenFd fd(io, opened);
    FileStatus status;
    check_io(retry_interrupted([&] { return io.fstat(fd.get(), status); }), "look up", file);
    for (const auto& each : held_)
      if (auto held = each.lock(); held && held->is_file(status)) return held;
    const int locked = retry_interrupted([&] { return io.lock(fd.get()); });
    const bool sure = !is_unsupported(locked);
    if (locked == -EAGAIN) throw_in_use(directory, read_holder(io, fd.get()), advice);
    if (!sure) {
      const Holder holder = read_holder(io, fd.get());
      if (!holder.pid.empty() && !has_ended(holder.process)) throw_in_use(directory, holder, advice);
    } else {
      check_io(locked, "lock", file);
    }
    FileStatus named;
    const int found = retry_interrupted([&] { return io.stat_at(directory.fd(), name, named); });
    if (found == -ENOENT || (found == 0 && (named.device != status.device || named.inode != status.inode)))
      return nullptr;  // the previous holder has deleted the file since this process opened it
    check_io(found, "look up", file);
    std::shared_ptr<DirectoryLock::Held> held;
    try {
      held_.emplace_back();
      held = std::make_shared<DirectoryLock::Held>(std::move(directory), std::move(fd), status, sure);
    } catch (const std::bad_alloc&) {
      io.unlink_at(directory.fd(), name);
      throw;
    }
    held_.back() = held;
    write_text(*held, file);
    return held;
  }

  // Writes the host, number and name of this process to the file. If there is a kernel lock, the text is used only in
  // messages, so errors such as a full disk are ignored. Otherwise errors are thrown.
  static void write_text(DirectoryLock::Held& held, const std::string& file) {
    Io& io = held.directory.io();
    const std::string text = text_of_this_process();
    try {
      check_io(retry_interrupted([&] { return io.ftruncate(held.fd.get(), 0); }), "write", file);
      write_all(io, held.fd.get(), file, text.data(), int64_t(text.size()), 0);
    } catch (const IoError&) {
      if (!held.is_sure) throw;
    }
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<DirectoryLock::Held>> held_;
};

// Makes the HeldLocks when the library is loaded, and not at the first lock, because the constructor registers the
// handlers for fork(). If a background thread took the first lock while another thread forks, no handler would run yet,
// and the child's mutex could stay locked forever.
[[maybe_unused]] const HeldLocks& kMadeAtLoad = HeldLocks::of_this_process();

void HeldLocks::delete_files() {
  const std::lock_guard lock(mutex_);
  for (const auto& each : held_)
    if (const auto held = each.lock()) held->delete_file();
}

DirectoryLock::Held::~Held() {
  delete_file();  // must come before the descriptor is closed, because another process can lock the file after that
}

void DirectoryLock::Held::delete_file() const {
  if (::getpid() != process) return;
  FileStatus named;
  const std::string name(kName);
  if (directory.io().stat_at(directory.fd(), name, named) == 0 && is_file(named))
    directory.io().unlink_at(directory.fd(), name);
}

DirectoryLock::DirectoryLock(Io& io, const std::string& path, std::string_view advice)
    : held_(HeldLocks::of_this_process().get(io, path, advice)) {}

DirectoryLock::~DirectoryLock() {
  if (held_) HeldLocks::of_this_process().drop(std::move(held_));
}

DirectoryLock::DirectoryLock(DirectoryLock&&) noexcept = default;

bool DirectoryLock::is_sure() const {
  return held_->is_sure;
}

bool DirectoryLock::keeps(const Directory& directory) const {
  FileStatus named;
  const std::string name(kName);
  return retry_interrupted([&] { return directory.io().stat_at(directory.fd(), name, named); }) == 0 &&
         held_->is_file(named);
}

std::unique_lock<std::mutex> DirectoryLock::take_turn(std::string_view advice, bool share) {
  std::unique_lock<std::mutex> turn(held_->using_it);
  if (turn_ != 0 && turn_ != held_->turns)
    throw StateError(concat("another in this process has taken over ", held_->directory.path(), ". ", advice));
  if (!share || !held_->shared || held_->turns == 0) ++held_->turns;
  held_->shared = share;
  turn_ = held_->turns;
  return turn;
}

const std::string& DirectoryLock::path() const {
  return held_->directory.path();
}

DirectoryLock& DirectoryLocks::of(const Directory& directory, std::string_view advice) {
  for (DirectoryLock& each : locks_)
    if (each.keeps(directory)) return each;
  // A lock of the same path protects a directory that has been deleted or replaced since, so that lock is dropped.
  locks_.remove_if([&](const DirectoryLock& each) { return each.path() == directory.path(); });
  return locks_.emplace_back(directory.io(), directory.path(), advice);
}

}  // namespace zeroshard
