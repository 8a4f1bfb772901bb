#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "file/io.h"

namespace zeroshard {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  ZS_CHECK(!path.empty() && path.find('\0') == path.npos, "the path of a file is empty or contains a zero byte");
  // Follows symbolic links, because the user chose the path. Sets O_NONBLOCK, because without it opening a FIFO would
  // wait for a writer forever.
  const int fd = retry_interrupted([&] {
    const int result = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return result < 0 ? -errno : result;
  });
  check_io(fd, "open", path);
  const OpenFd owned(posix_io(), fd);
  struct stat found;
  if (::fstat(fd, &found) != 0) throw_io_error("look up", path, -errno);
  if (!S_ISREG(found.st_mode)) throw IoError(concat("cannot open ", path, ": it is not a regular file"));
  device_ = found.st_dev;
  inode_ = found.st_ino;
  if (found.st_size == 0) return;  // nothing to map
  void* const memory = ::mmap(nullptr, size_t(found.st_size), PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw_io_error("map", path, -errno);
  bytes_ = {static_cast<const char*>(memory), size_t(found.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::check_whole() const {
  struct stat now;
  if (::stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != inode_) return;
  const auto bytes = int64_t(bytes_.size());
  if (now.st_size < bytes)
    throw IoError(concat(path_, " was cut from ", bytes, " to ", now.st_size,
                         " bytes while it was open: make it again, under another name while a run uses it"));
}

}  // namespace zeroshard
