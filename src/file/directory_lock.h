#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "file/durable.h"

namespace zeroshard {

// Keeps a directory for this process: while one lives, no other process gets one of the same directory. It is a lock of
// the kernel on the file kName there, which ends with the process, however that ends, and not with its forked children;
// on NFS it is the server's. Where a file system has no locks, the text in that file decides: a holder on this host
// that is no more is passed over, one on another host is not. In one process any number of them share the directory.
// The file goes with the last one; a killed process leaves it, and it stands in nobody's way. Any thread may use it.
class DirectoryLock {
 public:
  static constexpr std::string_view kName = ".lock";

  // Takes the lock without waiting, and makes the directory where it is missing. Throws IoError with the host and
  // number of the process that has it, followed by `way_out`: a sentence. `io` outlives the lock.
  DirectoryLock(Io& io, const std::string& path, std::string_view way_out);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&&) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  const std::string& path() const;
  // False where the file system has no locks: another process may have thought the same at the same time.
  bool is_sure() const;
  // Whether it keeps that directory still: not one that has been deleted and made anew, or whose file kName was.
  bool keeps(const Directory& directory) const;
  // For users in one process that must not mix: only one has the turn, until it drops what is returned; the next waits.
  // Throws StateError, followed by `way_out`, when another lock of this process has had a turn since this one's last.
  std::unique_lock<std::mutex> take_turn(std::string_view way_out);

 private:
  struct Held;
  friend class HeldLocks;

  std::shared_ptr<Held> held_;
  int64_t turn_ = 0;  // its last; 0: none yet
};

// The directories that one user has locked, until it is gone.
class DirectoryLocks {
 public:
  DirectoryLock& of(const Directory& directory, std::string_view way_out);

 private:
  std::list<DirectoryLock> locks_;
};

}  // namespace zeroshard
