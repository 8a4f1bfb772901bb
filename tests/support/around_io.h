#pragma once
#include <string>
#include <utility>
#include <vector>

#include "support/faulty_io.h"

namespace zeroshard::testing {

// Every call of an Io by way of `around(op, call)`, which returns what call() does. For tests: disks that are slow.
template <typename Around>
class AroundIo : public Io {
 public:
  // `io` outlives it. `around` is called by many threads at once.
  AroundIo(Io& io, Around around) : io_(io), around_(std::move(around)) {}

  int open_dir(const std::string& path) override {
    return around_(IoOp::kOpenDir, [&] { return io_.open_dir(path); });
  }
  int open_dir_at(int dir, const std::string& name) override {
    return around_(IoOp::kOpenDir, [&] { return io_.open_dir_at(dir, name); });
  }
  int open_at(int dir, const std::string& name) override {
    return around_(IoOp::kOpen, [&] { return io_.open_at(dir, name); });
  }
  int create_at(int dir, const std::string& name) override {
    return around_(IoOp::kCreate, [&] { return io_.create_at(dir, name); });
  }
  int open_or_create_at(int dir, const std::string& name) override {
    return around_(IoOp::kLock, [&] { return io_.open_or_create_at(dir, name); });
  }
  int create_unnamed(int dir) override {
    return around_(IoOp::kCreate, [&] { return io_.create_unnamed(dir); });
  }
  int mkdir(const std::string& path) override {
    return around_(IoOp::kMkdir, [&] { return io_.mkdir(path); });
  }
  int mkdir_at(int dir, const std::string& name) override {
    return around_(IoOp::kMkdir, [&] { return io_.mkdir_at(dir, name); });
  }
  int close(int fd) override {
    return around_(IoOp::kClose, [&] { return io_.close(fd); });
  }
  int64_t pread(int fd, void* data, size_t bytes, int64_t offset) override {
    return around_(IoOp::kRead, [&] { return io_.pread(fd, data, bytes, offset); });
  }
  int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) override {
    return around_(IoOp::kWrite, [&] { return io_.pwrite(fd, data, bytes, offset); });
  }
  int fallocate(int fd, int64_t bytes) override {
    return around_(IoOp::kAllocate, [&] { return io_.fallocate(fd, bytes); });
  }
  int ftruncate(int fd, int64_t bytes) override {
    return around_(IoOp::kTruncate, [&] { return io_.ftruncate(fd, bytes); });
  }
  int fdatasync(int fd) override {
    return around_(IoOp::kSync, [&] { return io_.fdatasync(fd); });
  }
  int fsync(int fd) override {
    return around_(IoOp::kSync, [&] { return io_.fsync(fd); });
  }
  int lock(int fd) override {
    return around_(IoOp::kLock, [&] { return io_.lock(fd); });
  }
  int set_direct(int fd, bool direct) override {
    return around_(IoOp::kSetDirect, [&] { return io_.set_direct(fd, direct); });
  }
  int advise_sequential(int fd) override { return io_.advise_sequential(fd); }
  int fstat(int fd, FileStatus& status) override {
    return around_(IoOp::kStat, [&] { return io_.fstat(fd, status); });
  }
  int stat_at(int dir, const std::string& name, FileStatus& status) override {
    return around_(IoOp::kStat, [&] { return io_.stat_at(dir, name, status); });
  }
  int64_t free_bytes(int fd) override { return io_.free_bytes(fd); }
  bool is_in_memory(int fd) override { return io_.is_in_memory(fd); }
  int list(int dir, std::vector<std::string>& names) override {
    return around_(IoOp::kList, [&] { return io_.list(dir, names); });
  }
  int rename_at(int dir, const std::string& from, const std::string& to) override {
    return around_(IoOp::kRename, [&] { return io_.rename_at(dir, from, to); });
  }
  int exchange_at(int dir, const std::string& one, const std::string& other) override {
    return around_(IoOp::kRename, [&] { return io_.exchange_at(dir, one, other); });
  }
  int unlink_at(int dir, const std::string& name) override {
    return around_(IoOp::kUnlink, [&] { return io_.unlink_at(dir, name); });
  }
  int rmdir_at(int dir, const std::string& name) override {
    return around_(IoOp::kUnlink, [&] { return io_.rmdir_at(dir, name); });
  }

 private:
  Io& io_;
  Around around_;
};

}  // namespace zeroshard::testing
