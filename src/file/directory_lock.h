#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "file/durable.h"

namespace zeroshard {

// Reserves a directory for this process. While an object lives, no other process gets a lock of the same directory. A
// process can have any number of locks of a directory. Any thread may make and destroy locks.
//
// The locks of a directory share a kernel lock on the file kName in the directory. The kernel lock ends with the
// process, however the process ends, and forked children do not keep it. On NFS the server keeps the kernel lock. The
// last lock of the directory deletes the file. If the process is killed, the file stays. This does no harm, because the
// kernel lock has ended.
//
// If a file system has no kernel locks, a process counts as the holder as long as the text in the file names that
// process. A holder on this host that has died is ignored. A holder on another host, or in another container, is not
// ignored, because this process cannot see whether that holder lives.
class DirectoryLock {
 public:
  static constexpr std::string_view kName = ".lock";

  // Takes the lock without waiting, and creates the directory if it is missing. If another process has the lock, throws
  // IoError with the sentence `advice`. The error names that process and its host if the file does. `io` must outlive
  // the lock.
  DirectoryLock(Io& io, const std::string& path, std::string_view advice);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&&) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  const std::string& path() const;
  // Returns false if the file system has no locks. Another process might then have locked the directory at the same
  // time.
  bool is_sure() const;
  // Returns whether this lock protects `directory`, which it does if the file kName in `directory` is the locked file.
  // A lock protects neither another directory nor its own directory after somebody has deleted or replaced the
  // directory or the file.
  bool keeps(const Directory& directory) const;
  // Waits until no other user of the directory in this process has the turn, and takes the turn, so that users do not
  // interleave. The caller has the turn until it drops the returned mutex lock. Throws StateError that ends with
  // `advice` if another DirectoryLock of this process has had a turn since this one's last turn. But if this one's last
  // turn and all later turns were taken with `share`, does not throw, because users that share do not touch one
  // another's files.
  std::unique_lock<std::mutex> take_turn(std::string_view advice, bool share = false);

 private:
  struct Held;
  friend class HeldLocks;

  std::shared_ptr<Held> held_;
  int64_t turn_ = 0;  // the number of this lock's last turn; 0: none yet
};

// The locks of one user, one for each directory that the user has asked for. The destructor releases them.
class DirectoryLocks {
 public:
  // Returns the lock of `directory`, and takes it first if there is none. Throws the errors of DirectoryLock.
  DirectoryLock& of(const Directory& directory, std::string_view advice);

 private:
  std::list<DirectoryLock> locks_;
};

}  // namespace zeroshard
