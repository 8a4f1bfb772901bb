#include <algorithm>

#include "base/check.h"
#include "file/durable.h"
#include "file/shown.h"

namespace zeroshard {
namespace {

constexpr int kMaxDepth = 128;  // most levels that remove_tree() enters; each takes a descriptor and stack

// Returns the path of the parent of `path`. Derives it from the text alone, because neither directory needs to exist.
std::string parent_of(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  const size_t slash = last == std::string::npos ? last : path.rfind('/', last);
  if (slash == std::string::npos) return ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

// Returns why a name below a directory is refused on any file system, or "" if the name is valid.
std::string_view flaw_of(std::string_view name) {
  if (name.empty()) return "the name is empty";
  if (name.front() == '/') return "the name is absolute";
  if (name.find('\0') != name.npos) return "the name contains a zero byte";
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component == "..") return "the name leads out of its directory";
    if (component.empty() || component == ".") return "the name has a component that names nothing";
    begin = end + 1;
  }
  return {};
}

}  // namespace

Directory Directory::create(Io& io, const std::string& path) {
  if (std::optional<Directory> there = open_if_there(io, path)) return std::move(*there);
  // "." has no parent in which it could be created.
  if (path == ".") throw_io_error("open the directory", path, -ENOENT);
  Directory parent = create(io, parent_of(path));
  const int result = retry_interrupted([&] { return io.mkdir(path); });
  if (result != -EEXIST) check_io(result, "create the directory", path);  // another rank might have created it
  parent.sync();
  return open(io, path);
}

Directory Directory::open(Io& io, const std::string& path) {
  std::optional<Directory> there = open_if_there(io, path);
  if (!there) throw_io_error("open the directory", path, -ENOENT);
  return std::move(*there);
}

std::optional<Directory> Directory::open_if_there(Io& io, const std::string& path) {
  ZS_CHECK(!path.empty() && path.find('\0') == path.npos, "the path of a directory is empty or contains a zero byte");
  const int fd = retry_interrupted([&] { return io.open_dir(path); });
  if (fd == -ENOENT) return std::nullopt;
  check_io(fd, "open the directory", path);
  OpenFd opened(io, fd);  // made first, so that the descriptor is closed if there is no memory for the path
  return Directory(io, std::move(opened), path);
}

std::string Directory::path_of(std::string_view name) const {
  return concat(path_, path_.ends_with('/') ? "" : "/", name);
}

void Directory::check_name(std::string_view name, std::string_view operation) const {
  const std::string_view flaw = flaw_of(name);
  if (flaw.empty()) return;
  throw IoError(concat("cannot ", operation, " '", shown(name), "' below ", path_, ": ", flaw));
}

void Directory::check(int64_t result, std::string_view operation, std::string_view name) const {
  if (result < 0) throw_io_error(operation, path_of(name), result);
}

void Directory::create_directory(const std::string& name) {
  check_name(name, "create the directory");
  check(retry_interrupted([&] { return io_->mkdir_at(fd_.get(), name); }), "create the directory", name);
}

Directory Directory::open_directory(const std::string& name) const {
  check_name(name, "open the directory");
  const int fd = retry_interrupted([&] { return io_->open_dir_at(fd_.get(), name); });
  check(fd, "open the directory", name);
  OpenFd opened(*io_, fd);
  return Directory(*io_, std::move(opened), path_of(name));
}

OpenFd Directory::create_file(const std::string& name) {
  check_name(name, "create");
  const int fd = retry_interrupted([&] { return io_->create_at(fd_.get(), name); });
  check(fd, "create", name);
  return OpenFd(*io_, fd);
}

OpenFd Directory::open_file(const std::string& name) const {
  check_name(name, "open");
  const int fd = retry_interrupted([&] { return io_->open_at(fd_.get(), name); });
  if (fd == -EINVAL || fd == -EISDIR || fd == -ENXIO)
    throw IoError(concat("cannot open ", path_of(name), ": it is not a regular file"));
  check(fd, "open", name);
  return OpenFd(*io_, fd);
}

std::vector<std::string> Directory::list() const {
  std::vector<std::string> names;
  check_io(retry_interrupted([&] { return io_->list(fd_.get(), names); }), "list", path_);
  std::sort(names.begin(), names.end());
  return names;
}

bool Directory::exists(const std::string& name) const {
  check_name(name, "look up");
  FileStatus status;
  const int result = retry_interrupted([&] { return io_->stat_at(fd_.get(), name, status); });
  if (result == -ENOENT) return false;
  check(result, "look up", name);
  return true;
}

int64_t Directory::file_size(const std::string& name) const {
  check_name(name, "look up");
  FileStatus status;
  check(retry_interrupted([&] { return io_->stat_at(fd_.get(), name, status); }), "look up", name);
  if (status.kind != FileStatus::Kind::kRegular)
    throw IoError(concat("cannot use ", path_of(name), ": it is not a regular file"));
  return status.size;
}

void Directory::rename(const std::string& from, const std::string& to) {
  check_name(from, "rename");
  check_name(to, "rename to");
  const int result = retry_interrupted([&] { return io_->rename_at(fd_.get(), from, to); });
  if (result < 0) throw_io_error("rename", concat(path_of(from), " to ", to), result);
}

void Directory::exchange(const std::string& one, const std::string& other) {
  check_name(one, "exchange");
  check_name(other, "exchange");
  const int result = retry_interrupted([&] { return io_->exchange_at(fd_.get(), one, other); });
  if (result == -EINVAL || result == -ENOSYS)
    throw IoError(concat("cannot exchange ", path_of(one), " with ", other,
                         ": the file system cannot do that in one step. Delete the old one first"));
  if (result < 0) throw_io_error("exchange", concat(path_of(one), " with ", other), result);
}

void Directory::remove(const std::string& name) {
  check_name(name, "delete");
  check(retry_interrupted([&] { return io_->unlink_at(fd_.get(), name); }), "delete", name);
}

void Directory::remove_tree(const std::string& name) {
  check_name(name, "delete");
  remove_tree(name, 0);
}

void Directory::remove_tree(const std::string& name, int depth) {
  const int result = retry_interrupted([&] { return io_->unlink_at(fd_.get(), name); });
  if (result == -ENOENT) return;
  if (result != -EISDIR) return check(result, "delete", name);
  if (depth == kMaxDepth) throw IoError(concat("cannot delete ", path_of(name), ": it is nested too deeply"));
  {
    Directory below = open_directory(name);
    for (const std::string& entry : below.list()) below.remove_tree(entry, depth + 1);
  }
  const int removed = retry_interrupted([&] { return io_->rmdir_at(fd_.get(), name); });
  if (removed != -ENOENT) check(removed, "delete the directory", name);
}

void Directory::sync() {
  check_io(retry_interrupted([&] { return io_->fsync(fd_.get()); }), "make durable the directory", path_);
}

}  // namespace zeroshard
