#include "support/faulty_io.h"

#include <algorithm>

namespace zeroshard {
namespace {

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Without the slashes that change nothing, so that a directory has one name.
std::string plain(const std::string& path) {
  std::string result;
  for (const char c : path)
    if (c != '/' || !result.ends_with('/')) result += c;
  if (result.size() > 1 && result.ends_with('/')) result.pop_back();
  return result;
}

bool is_at_or_below(const std::string& path, const std::string& top) {
  return path == top || path.starts_with(top + "/");
}

}  // namespace

void FaultyIo::fail(const IoFault& fault) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  calls_.clear();
  has_failed_ = false;
}

void FaultyIo::heal() {
  const std::lock_guard lock(mutex_);
  fault_.reset();
}

void FaultyIo::limit_transfers(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  max_transfer_ = bytes;
}

int64_t FaultyIo::calls(std::optional<IoOp> op) const {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const auto& [kind, calls] : calls_)
    if (!op || *op == kind) count += calls;
  return count;
}

bool FaultyIo::has_failed() const {
  const std::lock_guard lock(mutex_);
  return has_failed_;
}

std::vector<IoCall> FaultyIo::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

std::set<std::string> FaultyIo::not_durable() const {
  const std::lock_guard lock(mutex_);
  return not_durable_;
}

std::vector<std::string> FaultyIo::early_renames() const {
  const std::lock_guard lock(mutex_);
  return early_renames_;
}

int FaultyIo::open_files() const {
  const std::lock_guard lock(mutex_);
  return int(open_.size());
}

template <typename Call>
auto FaultyIo::run(IoOp op, const std::string& path, const Call& call) {
  using Result = decltype(call());
  size_t position = 0;
  {
    const std::lock_guard lock(mutex_);
    int64_t count = ++calls_[op];
    position = log_.size();
    log_.push_back({op, path, 0});
    if (fault_ && (!fault_->op || *fault_->op == op)) {
      if (!fault_->op) {
        count = 0;
        for (const auto& [kind, calls] : calls_) count += calls;
      }
      if (count == fault_->nth || (fault_->sticky && count > fault_->nth)) {
        has_failed_ = true;
        log_[position].result = -fault_->error;
        return Result(-fault_->error);
      }
    }
  }
  const Result result = call();
  const std::lock_guard lock(mutex_);
  log_[position].result = result;
  return result;
}

int FaultyIo::remember(int fd, const std::string& path) {
  if (fd < 0) return fd;
  const std::lock_guard lock(mutex_);
  open_[fd] = path;
  return fd;
}

std::string FaultyIo::path_of(int fd) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(fd);
  return found == open_.end() ? "?" : found->second;
}

std::string FaultyIo::path_of(int dir, const std::string& name) const {
  return path_of(dir) + "/" + name;
}

void FaultyIo::changed(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!locks_.contains(path)) not_durable_.insert(path);
}

void FaultyIo::listed(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!locks_.contains(path)) not_durable_.insert(directory_of(path));
}

int FaultyIo::synced(int fd, int result) {
  const std::string path = path_of(fd);
  const std::lock_guard lock(mutex_);
  if (result == 0) not_durable_.erase(path);
  return result;
}

void FaultyIo::moved(const std::string& from, const std::string& to, bool exchange) {
  listed(from);
  listed(to);
  const std::lock_guard lock(mutex_);
  std::set<std::string> after;
  for (const std::string& path : not_durable_) {
    if (is_at_or_below(path, from)) {
      early_renames_.push_back(path);
      after.insert(to + path.substr(from.size()));
    } else if (is_at_or_below(path, to)) {
      if (exchange) after.insert(from + path.substr(to.size()));
    } else {
      after.insert(path);
    }
  }
  not_durable_ = std::move(after);
  for (auto& [fd, path] : open_) {
    if (is_at_or_below(path, from)) {
      path = to + path.substr(from.size());
    } else if (exchange && is_at_or_below(path, to)) {
      path = from + path.substr(to.size());
    }
  }
}

void FaultyIo::forget(const std::string& path) {
  listed(path);
  const std::lock_guard lock(mutex_);
  std::erase_if(not_durable_, [&](const std::string& other) { return is_at_or_below(other, path); });
}

int FaultyIo::open_dir(const std::string& path) {
  return remember(run(IoOp::kOpenDir, plain(path), [&] { return io_.open_dir(path); }), plain(path));
}

int FaultyIo::open_dir_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  return remember(run(IoOp::kOpenDir, path, [&] { return io_.open_dir_at(dir, name); }), path);
}

int FaultyIo::open_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  return remember(run(IoOp::kOpen, path, [&] { return io_.open_at(dir, name); }), path);
}

int FaultyIo::create_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  const int fd = remember(run(IoOp::kCreate, path, [&] { return io_.create_at(dir, name); }), path);
  if (fd >= 0) {
    changed(path);
    listed(path);
  }
  return fd;
}

int FaultyIo::open_or_create_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  {
    const std::lock_guard lock(mutex_);
    locks_.insert(path);
  }
  return remember(run(IoOp::kLock, path, [&] { return io_.open_or_create_at(dir, name); }), path);
}

int FaultyIo::create_unnamed(int dir) {
  const std::string path = path_of(dir) + "/(unnamed)";
  return remember(run(IoOp::kCreate, path, [&] { return io_.create_unnamed(dir); }), path);
}

int FaultyIo::mkdir(const std::string& path) {
  const int result = run(IoOp::kMkdir, plain(path), [&] { return io_.mkdir(path); });
  if (result == 0) listed(plain(path));
  return result;
}

int FaultyIo::mkdir_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  const int result = run(IoOp::kMkdir, path, [&] { return io_.mkdir_at(dir, name); });
  if (result == 0) listed(path);
  return result;
}

int FaultyIo::close(int fd) {
  const std::string path = path_of(fd);
  {
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
  }
  bool closed = false;
  const int result = run(IoOp::kClose, path, [&] {
    closed = true;
    return io_.close(fd);
  });
  if (!closed) io_.close(fd);  // as the kernel does, a failing close closes
  return result;
}

int64_t FaultyIo::pread(int fd, void* data, size_t bytes, int64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    if (max_transfer_ >= 0) bytes = std::min(bytes, size_t(max_transfer_));
  }
  return run(IoOp::kRead, path_of(fd), [&] { return io_.pread(fd, data, bytes, offset); });
}

int64_t FaultyIo::pwrite(int fd, const void* data, size_t bytes, int64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    if (max_transfer_ >= 0) bytes = std::min(bytes, size_t(max_transfer_));
  }
  const std::string path = path_of(fd);
  changed(path);
  return run(IoOp::kWrite, path, [&] { return io_.pwrite(fd, data, bytes, offset); });
}

int FaultyIo::fallocate(int fd, int64_t bytes) {
  changed(path_of(fd));
  return run(IoOp::kAllocate, path_of(fd), [&] { return io_.fallocate(fd, bytes); });
}

int FaultyIo::ftruncate(int fd, int64_t bytes) {
  changed(path_of(fd));
  return run(IoOp::kTruncate, path_of(fd), [&] { return io_.ftruncate(fd, bytes); });
}

int FaultyIo::fdatasync(int fd) {
  return synced(fd, run(IoOp::kSync, path_of(fd), [&] { return io_.fdatasync(fd); }));
}

int FaultyIo::fsync(int fd) {
  return synced(fd, run(IoOp::kSync, path_of(fd), [&] { return io_.fsync(fd); }));
}

int FaultyIo::lock(int fd) {
  return run(IoOp::kLock, path_of(fd), [&] { return io_.lock(fd); });
}

int FaultyIo::set_direct(int fd, bool direct) {
  return run(IoOp::kSetDirect, path_of(fd), [&] { return io_.set_direct(fd, direct); });
}

int FaultyIo::advise_sequential(int fd) {
  return io_.advise_sequential(fd);  // nobody looks at the result
}

int FaultyIo::fstat(int fd, FileStatus& status) {
  return run(IoOp::kStat, path_of(fd), [&] { return io_.fstat(fd, status); });
}

int FaultyIo::stat_at(int dir, const std::string& name, FileStatus& status) {
  return run(IoOp::kStat, path_of(dir, name), [&] { return io_.stat_at(dir, name, status); });
}

int64_t FaultyIo::free_bytes(int fd) {
  return io_.free_bytes(fd);  // for messages
}

bool FaultyIo::is_in_memory(int fd) {
  return io_.is_in_memory(fd);  // for a warning
}

int FaultyIo::list(int dir, std::vector<std::string>& names) {
  return run(IoOp::kList, path_of(dir), [&] { return io_.list(dir, names); });
}

int FaultyIo::rename_at(int dir, const std::string& from, const std::string& to) {
  const std::string source = path_of(dir, from), target = path_of(dir, to);
  const int result = run(IoOp::kRename, target, [&] { return io_.rename_at(dir, from, to); });
  if (result == 0) moved(source, target, /*exchange=*/false);
  return result;
}

int FaultyIo::exchange_at(int dir, const std::string& one, const std::string& other) {
  const std::string first = path_of(dir, one), second = path_of(dir, other);
  const int result = run(IoOp::kRename, second, [&] { return io_.exchange_at(dir, one, other); });
  if (result == 0) moved(first, second, /*exchange=*/true);
  return result;
}

int FaultyIo::unlink_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  const int result = run(IoOp::kUnlink, path, [&] { return io_.unlink_at(dir, name); });
  if (result == 0) forget(path);
  return result;
}

int FaultyIo::rmdir_at(int dir, const std::string& name) {
  const std::string path = path_of(dir, name);
  const int result = run(IoOp::kUnlink, path, [&] { return io_.rmdir_at(dir, name); });
  if (result == 0) forget(path);
  return result;
}

}  // namespace zeroshard
