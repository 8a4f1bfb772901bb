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
// in the file names the holder. A holder on this host that has died is ignored. A holder on another host is not
// ignored, because this process cannot see whether that holder lives. A process can have any number of locks of a
// directory. The last one deletes the file. If a process is killed, its file stays, which does no harm. Thread-safe.
class DirectoryLock {
 public:
  static constexpr std::string_view kName = ".lock";

  // Takes the lock without waiting, and creates the directory if it is missing. If another process has the lock, throws
  // IoError that names the host and the number of that process, followed by the sentence `advice`. `io` must outlive
  // the lock.
  DirectoryLock(Io& io, const std::string& path, std::string_view advice);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&&) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  const std::string& path() const;
  // Returns false if the file system has no locks. Another process might then have locked the directory at the same
  // time.
  bool is_sure() const;
  // Returns whether this lock still protects the directory. If the directory or its file kName was deleted and made
  // anew, the lock does not.
  bool keeps(const Directory& directory) const;
  // Takes a turn. Several users of the directory in this process take turns, so that they do not interleave. The user
  // has the turn until it drops the returned lock. Until then the next user waits. If another lock of this process had
  // a turn since this lock's last turn, throws StateError that ends with `advice`. But turns of users that all `share`
  // do not count, because such users do not touch one another's files.
  std::unique_lock<std::mutex> take_turn(std::string_view advice, bool share = false);

 private:
  struct Held;
  friend class HeldLocks;

  std::shared_ptr<Held> held_;
  int64_t turn_ = 0;  // number of this lock's last turn; 0: none yet
};

// The directories that one user has locked. The destructor unlocks them.
class DirectoryLocks {
 public:
  DirectoryLock& of(const Directory& directory, std::string_view advice);

 private:
  std::list<DirectoryLock> locks_;
};

}  // namespace zeroshard
