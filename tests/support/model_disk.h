#pragma once
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "file/io.h"
#include "support/random.h"

// A disk in memory, for what real ones do not show: it remembers every change, and what a power failure may leave of
// them. Tests on it need no time for a device, and find the same on every machine.
namespace zeroshard::testing {

// What is on a disk. Files and directories are numbered; 0 is the directory "/".
struct DiskTree {
  struct Node {
    bool directory = false;
    std::string bytes;                    // of a file
    std::map<std::string, size_t> names;  // of a directory
  };
  std::vector<Node> nodes = {{.directory = true, .bytes = {}, .names = {}}};
};

// One change, of the file or directory `node`.
struct DiskChange {
  enum class Kind {
    kMake,      // `node` begins to exist, empty and without a name
    kName,      // `name` is `target`
    kUnname,    // `name` is no more
    kRename,    // `name`, which is `target`, is `to` from now on
    kExchange,  // `name`, which is `target`, and `to`, which is `other`, change places
    kWrite,     // `bytes` at `offset`
    kResize,    // to `offset` bytes
    kSync,      // all changes of `node` before are durable
  };
  Kind kind = Kind::kMake;
  size_t node = 0;
  std::string name = {}, to = {};
  size_t target = 0, other = 0;
  bool directory = false;
  int64_t offset = 0;
  std::string bytes = {};
};

inline void apply(const DiskChange& change, DiskTree& tree) {
  using Kind = DiskChange::Kind;
  if (change.kind == Kind::kMake) {
    tree.nodes.push_back({.directory = change.directory, .bytes = {}, .names = {}});
    return;
  }
  DiskTree::Node& node = tree.nodes[change.node];
  const auto unname = [&](const std::string& name, size_t target) {
    const auto found = node.names.find(name);
    if (found != node.names.end() && found->second == target) node.names.erase(found);
  };
  switch (change.kind) {
    case Kind::kName:
      node.names[change.name] = change.target;
      break;
    case Kind::kUnname:
      unname(change.name, change.target);
      break;
    case Kind::kRename:
      unname(change.name, change.target);
      node.names[change.to] = change.target;
      break;
    case Kind::kExchange:
      node.names[change.to] = change.target;
      node.names[change.name] = change.other;
      break;
    case Kind::kWrite: {
      const size_t end = size_t(change.offset) + change.bytes.size();
      if (node.bytes.size() < end) node.bytes.resize(end);
      std::copy(change.bytes.begin(), change.bytes.end(), node.bytes.begin() + change.offset);
      break;
    }
    case Kind::kResize:
      node.bytes.resize(size_t(change.offset));
      break;
    case Kind::kMake:
    case Kind::kSync:
      break;
  }
}

// The disk as a file system: errors are the kernel's, O_DIRECT wants alignment. Paths begin at "/"; there are no links,
// and names move within their directory alone. Any number of threads may call it.
class ModelDisk final : public Io {
 public:
  ModelDisk() = default;
  explicit ModelDisk(DiskTree tree) : tree_(std::move(tree)) {}

  DiskTree tree() const {
    return locked([&] { return tree_; });
  }
  std::vector<DiskChange> changes() const {
    return locked([&] { return changes_; });
  }
  size_t open_files() const {
    return locked([&] { return open_.size(); });
  }
  // The number of what `path` names.
  int64_t node_of(const std::string& path) const {
    return locked([&] { return find(0, path); });
  }

  int open_dir(const std::string& path) override {
    return locked([&] { return path.starts_with('/') ? open_found(find(0, path), true) : -ENOENT; });
  }
  int open_dir_at(int dir, const std::string& name) override {
    return locked([&] { return open_found(find(node(dir), name), true); });
  }
  int open_at(int dir, const std::string& name) override {
    return locked([&] { return open_found(find(node(dir), name), false); });
  }
  int create_at(int dir, const std::string& name) override {
    return locked([&] {
      const int64_t made = make(node(dir), name, false);
      return made < 0 ? int(made) : open_found(made, false);
    });
  }
  int open_or_create_at(int dir, const std::string& name) override {
    return locked([&] {
      int64_t found = find(node(dir), name);
      if (found == -ENOENT) found = make(node(dir), name, false);
      return open_found(found, false);
    });
  }
  int create_unnamed(int) override { return -EOPNOTSUPP; }
  int mkdir(const std::string& path) override {
    return locked([&] { return path.starts_with('/') ? int(std::min(make(0, path, true), int64_t{0})) : -ENOENT; });
  }
  int mkdir_at(int dir, const std::string& name) override {
    return locked([&] { return int(std::min(make(node(dir), name, true), int64_t{0})); });
  }
  int close(int fd) override {
    return locked([&] { return open_.erase(fd) == 1 ? 0 : -EBADF; });
  }

  int64_t pread(int fd, void* data, size_t bytes, int64_t offset) override {
    return locked([&]() -> int64_t {
      if (open_.at(fd).direct && !aligned(data, bytes, offset)) return -EINVAL;
      const std::string& contents = tree_.nodes[node(fd)].bytes;
      const size_t begin = std::min(size_t(offset), contents.size()), size = std::min(bytes, contents.size() - begin);
      std::memcpy(data, contents.data() + begin, size);
      return int64_t(size);
    });
  }
  int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) override {
    return locked([&]() -> int64_t {
      if (open_.at(fd).direct && !aligned(data, bytes, offset)) return -EINVAL;
      record({.kind = Kind::kWrite,
              .node = node(fd),
              .offset = offset,
              .bytes = std::string(static_cast<const char*>(data), bytes)});
      return int64_t(bytes);
    });
  }
  int fallocate(int fd, int64_t bytes) override {
    return locked([&] {
      const auto size = int64_t(tree_.nodes[node(fd)].bytes.size());
      return record({.kind = Kind::kResize, .node = node(fd), .offset = std::max(size, bytes)});
    });
  }
  int ftruncate(int fd, int64_t bytes) override {
    return locked([&] { return record({.kind = Kind::kResize, .node = node(fd), .offset = bytes}); });
  }
  int fdatasync(int fd) override { return fsync(fd); }
  int fsync(int fd) override {
    return locked([&] { return record({.kind = Kind::kSync, .node = node(fd)}); });
  }
  int lock(int fd) override {
    return locked([&] {
      for (const auto& [other, open] : open_)
        if (other != fd && open.locked && open.node == node(fd)) return -EAGAIN;
      return open_.at(fd).locked = true, 0;
    });
  }
  int set_direct(int fd, bool direct) override {
    return locked([&] { return open_.at(fd).direct = direct, 0; });
  }
  int advise_sequential(int) override { return 0; }

  int fstat(int fd, FileStatus& status) override {
    return locked([&] { return describe(int64_t(node(fd)), status); });
  }
  int stat_at(int dir, const std::string& name, FileStatus& status) override {
    return locked([&] { return describe(find(node(dir), name), status); });
  }
  int64_t free_bytes(int) override { return int64_t{1} << 40; }
  bool is_in_memory(int) override { return false; }
  int list(int dir, std::vector<std::string>& names) override {
    return locked([&] {
      names.clear();
      for (const auto& [name, target] : tree_.nodes[node(dir)].names) names.push_back(name);
      return 0;
    });
  }

  int rename_at(int dir, const std::string& from, const std::string& to) override {
    return locked([&] {
      if ((from + to).find('/') != std::string::npos) return -EXDEV;
      const int64_t source = find(node(dir), from), old = find(node(dir), to);
      if (source < 0) return int(source);
      if (old == source) return 0;
      if (old >= 0) {
        const DiskTree::Node &moved = tree_.nodes[size_t(source)], &replaced = tree_.nodes[size_t(old)];
        if (moved.directory != replaced.directory) return moved.directory ? -ENOTDIR : -EISDIR;
        if (!replaced.names.empty()) return -ENOTEMPTY;
      }
      return record({.kind = Kind::kRename, .node = node(dir), .name = from, .to = to, .target = size_t(source)});
    });
  }
  int exchange_at(int dir, const std::string& one, const std::string& other) override {
    return locked([&] {
      if ((one + other).find('/') != std::string::npos) return -EXDEV;
      const int64_t first = find(node(dir), one), second = find(node(dir), other);
      if (first < 0 || second < 0) return int(std::min(first, second));
      return record({.kind = Kind::kExchange,
                     .node = node(dir),
                     .name = one,
                     .to = other,
                     .target = size_t(first),
                     .other = size_t(second)});
    });
  }
  int unlink_at(int dir, const std::string& name) override { return remove(dir, name, false); }
  int rmdir_at(int dir, const std::string& name) override { return remove(dir, name, true); }

 private:
  using Kind = DiskChange::Kind;
  static constexpr uint64_t kAlignment = 512;

  struct Open {
    size_t node;
    bool direct = false, locked = false;
  };

  template <typename Call>
  std::invoke_result_t<const Call&> locked(const Call& call) const {
    const std::lock_guard lock(mutex_);
    return call();
  }

  static bool aligned(const void* data, size_t bytes, int64_t offset) {
    return (reinterpret_cast<uintptr_t>(data) | bytes | uint64_t(offset)) % kAlignment == 0;
  }

  size_t node(int fd) const { return open_.at(fd).node; }

  // The node that `path` leads to below `from`, or -errno.
  int64_t find(size_t from, const std::string& path) const {
    size_t at = from;
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      begin = end + 1;
      if (name.empty()) continue;
      if (name == ".." || name == ".") return -EXDEV;
      if (!tree_.nodes[at].directory) return -ENOTDIR;
      const auto found = tree_.nodes[at].names.find(name);
      if (found == tree_.nodes[at].names.end()) return -ENOENT;
      at = found->second;
    }
    return int64_t(at);
  }

  int open_found(int64_t found, bool directory) {
    if (found < 0) return int(found);
    if (tree_.nodes[size_t(found)].directory != directory) return directory ? -ENOTDIR : -EISDIR;
    open_[next_fd_] = {.node = size_t(found)};
    return next_fd_++;
  }

  // The directory of what `path` names, and its last component.
  std::pair<int64_t, std::string> parent_of(size_t from, const std::string& path) const {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return {int64_t(from), path};
    return {find(from, path.substr(0, slash)), path.substr(slash + 1)};
  }

  int64_t make(size_t from, const std::string& path, bool directory) {
    const auto [parent, name] = parent_of(from, path);
    if (parent < 0) return parent;
    const int64_t there = find(size_t(parent), name);
    if (there != -ENOENT) return there < 0 ? there : -EEXIST;
    const size_t made = tree_.nodes.size();
    record({.kind = Kind::kMake, .node = made, .directory = directory});
    record({.kind = Kind::kName, .node = size_t(parent), .name = name, .target = made});
    return int64_t(made);
  }

  int remove(int dir, const std::string& path, bool directory) {
    return locked([&] {
      const auto [parent, name] = parent_of(node(dir), path);
      const int64_t found = parent < 0 ? parent : find(size_t(parent), name);
      if (found < 0) return int(found);
      const DiskTree::Node& removed = tree_.nodes[size_t(found)];
      if (removed.directory != directory) return directory ? -ENOTDIR : -EISDIR;
      if (!removed.names.empty()) return -ENOTEMPTY;
      return record({.kind = Kind::kUnname, .node = size_t(parent), .name = name, .target = size_t(found)});
    });
  }

  int describe(int64_t found, FileStatus& status) const {
    if (found < 0) return int(found);
    const DiskTree::Node& described = tree_.nodes[size_t(found)];
    status.kind = described.directory ? FileStatus::Kind::kDirectory : FileStatus::Kind::kRegular;
    status.size = int64_t(described.bytes.size());
    status.device = reinterpret_cast<uintptr_t>(this);
    status.inode = uint64_t(found);
    return 0;
  }

  int record(DiskChange change) {
    apply(change, tree_);
    changes_.push_back(std::move(change));
    return 0;
  }

  mutable std::mutex mutex_;  // of all below
  DiskTree tree_;
  std::vector<DiskChange> changes_;
  std::map<int, Open> open_;
  int next_fd_ = 3;
};

// Goes through the changes of a disk, and makes the disks that a power failure after any of them may leave. Of a file
// system it expects what POSIX promises: a sync makes the changes of that file, or of that directory's names, durable.
// Until then each is there or not, whatever became of earlier ones; a write may be there in part, or be zeros or
// anything else of its length; a rename or an exchange is there as a whole or not at all.
class PowerFailures {
 public:
  // `changes` outlives it; they are of a disk that began empty.
  explicit PowerFailures(const std::vector<DiskChange>& changes) : changes_(changes) {}

  // How many changes there were before the power failed.
  size_t position() const { return position_; }
  size_t open_changes() const { return pending_.size(); }
  // Goes on to the next change; false at the end.
  bool advance() {
    if (position_ == changes_.size()) return false;
    const DiskChange& change = changes_[position_++];
    if (change.kind == DiskChange::Kind::kMake) {
      apply(change, durable_);
    } else if (change.kind == DiskChange::Kind::kSync) {
      for (const DiskChange* each : pending_)
        if (each->node == change.node) apply(*each, durable_);
      std::erase_if(pending_, [&](const DiskChange* each) { return each->node == change.node; });
    } else {
      pending_.push_back(&change);
    }
    return true;
  }

  // Nothing that is not durable is there, or all of it.
  const DiskTree& none() const { return durable_; }
  DiskTree all() const {
    return with([](size_t) { return true; });
  }
  // One change alone, or all others.
  DiskTree only(size_t index) const {
    return with([&](size_t i) { return i == index; });
  }
  DiskTree all_but(size_t index) const {
    return with([&](size_t i) { return i != index; });
  }
  // Any of the disks.
  DiskTree any(Random& random) const {
    DiskTree tree = durable_;
    const uint64_t kept = 1 + random() % 7;  // of 8: few, or most
    for (const DiskChange* change : pending_) {
      if (random() % 8 >= kept) continue;
      apply(change->kind == DiskChange::Kind::kWrite && random() % 2 == 0 ? torn(*change, random) : *change, tree);
    }
    return tree;
  }

 private:
  DiskTree with(const auto& is_there) const {
    DiskTree tree = durable_;
    for (size_t i = 0; i < pending_.size(); ++i)
      if (is_there(i)) apply(*pending_[i], tree);
    return tree;
  }

  // The file is as long as after the write, but what lies there is not what was written; or the write stopped early.
  static DiskChange torn(DiskChange write, Random& random) {
    constexpr size_t kSector = 512;
    const uint64_t how = random() % 4;
    if (how == 0) write.bytes.resize(size_t(random() % (write.bytes.size() + 1)));
    if (how == 1) std::fill(write.bytes.begin(), write.bytes.end(), '\0');
    for (size_t at = 0; how >= 2 && at < write.bytes.size(); at += kSector) {
      if (random() % 2 == 0) continue;
      const size_t end = std::min(at + kSector, write.bytes.size());
      for (size_t i = at; i < end; ++i) write.bytes[i] = how == 2 ? '\0' : char(random());
    }
    return write;
  }

  const std::vector<DiskChange>& changes_;
  size_t position_ = 0;
  DiskTree durable_;
  std::vector<const DiskChange*> pending_;
};

}  // namespace zeroshard::testing
