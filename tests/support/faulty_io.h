#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "file/io.h"

namespace zeroshard {

enum class IoOp {
  kOpenDir,
  kOpen,
  kCreate,
  kMkdir,
  kClose,
  kRead,
  kWrite,
  kAllocate,
  kTruncate,
  kSync,  // of a file's data, a file or a directory
  kLock,  // and opening what is locked
  kSetDirect,
  kStat,
  kList,
  kRename,  // and exchange
  kUnlink,  // and rmdir
};

struct IoCall {
  IoOp op;
  std::string path;  // of a rename, the new one
  int64_t result;
};

// Which call fails. Calls are counted from FaultyIo::fail() on.
struct IoFault {
  std::optional<IoOp> op;  // unset: any
  int64_t nth = 1;         // the first is 1
  int error = 5;           // EIO
  bool sticky = false;     // every later call of that kind fails too
};

// For tests: an Io whose n-th call fails, that remembers what was called, and knows what a power failure would lose.
// It does not call the Io below for what it lets fail, except close(). Any number of threads may call it.
class FaultyIo final : public Io {
 public:
  explicit FaultyIo(Io& io) : io_(io) {}

  void fail(const IoFault& fault);  // instead of the fault before
  void heal();
  // Writes and reads stop after that many bytes per call.
  void limit_transfers(int64_t bytes);

  int64_t calls(std::optional<IoOp> op = std::nullopt) const;  // since fail(), or from the start; of any kind
  bool has_failed() const;                                     // since fail()
  std::vector<IoCall> log() const;
  // Files written and directories changed since they were last made durable.
  std::set<std::string> not_durable() const;
  // What was renamed before its contents were durable: after a power failure, a new name with old or no contents.
  std::vector<std::string> early_renames() const;
  int open_files() const;

  int open_dir(const std::string& path) override;
  int open_dir_at(int dir, const std::string& name) override;
  int open_at(int dir, const std::string& name) override;
  int create_at(int dir, const std::string& name) override;
  int open_or_create_at(int dir, const std::string& name) override;
  int create_unnamed(int dir) override;
  int mkdir(const std::string& path) override;
  int mkdir_at(int dir, const std::string& name) override;
  int close(int fd) override;
  int64_t pread(int fd, void* data, size_t bytes, int64_t offset) override;
  int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) override;
  int fallocate(int fd, int64_t bytes) override;
  int ftruncate(int fd, int64_t bytes) override;
  int fdatasync(int fd) override;
  int fsync(int fd) override;
  int lock(int fd) override;
  int set_direct(int fd, bool direct) override;
  int advise_sequential(int fd) override;
  int fstat(int fd, FileStatus& status) override;
  int stat_at(int dir, const std::string& name, FileStatus& status) override;
  int64_t free_bytes(int fd) override;
  bool is_in_memory(int fd) override;
  int list(int dir, std::vector<std::string>& names) override;
  int rename_at(int dir, const std::string& from, const std::string& to) override;
  int exchange_at(int dir, const std::string& one, const std::string& other) override;
  int unlink_at(int dir, const std::string& name) override;
  int rmdir_at(int dir, const std::string& name) override;

 private:
  // Counts a call and logs it; calls `call` unless it is to fail.
  template <typename Call>
  auto run(IoOp op, const std::string& path, const Call& call);
  int remember(int fd, const std::string& path);  // of an opened descriptor
  std::string path_of(int fd) const;
  std::string path_of(int dir, const std::string& name) const;
  void changed(const std::string& path);  // written
  void listed(const std::string& path);   // its name added, changed or removed
  int synced(int fd, int result);
  void moved(const std::string& from, const std::string& to, bool exchange);
  void forget(const std::string& path);

  Io& io_;
  mutable std::mutex mutex_;  // of all below
  std::optional<IoFault> fault_;
  std::map<IoOp, int64_t> calls_;
  bool has_failed_ = false;
  int64_t max_transfer_ = -1;  // none
  std::vector<IoCall> log_;
  std::map<int, std::string> open_;
  std::set<std::string> not_durable_;
  std::vector<std::string> early_renames_;
  std::set<std::string> locks_;  // files that need not outlive a power failure
};

}  // namespace zeroshard
