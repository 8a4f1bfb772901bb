#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "file/durable.h"

namespace zeroshard {

// Reserves a directory for this process. While an object lives, no other process gets a lock of the same directory. The
// object holds a kernel lock on the file kName in the directory. The lock ends with the process, however the process
// ends, and forked children do not keep it. On NFS the server keeps the lock. If a file system has no locks, the text
// in the file names the holder. A holder on this host that has died is ignored. A holder on another host is not,
// because this process cannot see whether it lives. A process may have any number of locks of a directory. The last one
// deletes the file. The file of a killed process does no harm. Thread-safe.
class DirectoryLock {
 public:
  static constexpr std::string_view kName = ".lock";

  // Takes the lock without waiting, and creates the directory if it is missing. If another process has the lock, throws
  // IoError with that process's host and number, followed by the sentence `advice`. `io` must outlive the lock.
  DirectoryLock(Io& io, const std::string& path, std::string_view advice);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&&) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  const std::string& path() const;
  // Returns false if the file system has no locks, because another process may then have locked the directory at the
  // same time.
  bool is_sure() const;
  // Returns whether this lock still protects the directory. It does not if the directory or its file kName was deleted
  // and made anew.
  bool keeps(const Directory& directory) const;
  // Gives the turn to one of several users in this process that must not interleave. The user has the turn until it
  // drops the returned lock, and the next user waits. Throws StateError, followed by `advice`, if another lock of this
  // process had a turn since this lock's last turn. If both users `share`, the other's turns do not count, because such
  // users do not touch one another's files.
  std::unique_lock<std::mutex> take_turn(std::string_view advice, bool share = false);

 private:
  struct Held;
  friend class HeldLocks;

  std::shared_ptr<Held> held_;
  int64_t turn_ = 0;  // number of this lock's last turn; 0: none yet
};

// The directories that one user has locked, unlocked on destruction.
class DirectoryLocks {
 public:
  DirectoryLock& of(const Directory& directory, std::string_view advice);

 private:
  std::list<DirectoryLock> locks_;
};

}  // namespace zeroshard
