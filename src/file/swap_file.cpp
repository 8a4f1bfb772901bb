#include "file/swap_file.h"

#include "base/check.h"
#include "file/durable.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

OpenFd open_unnamed(Io& io, const Directory& directory, const std::string& path) {
  const int unnamed = retry_interrupted([&] { return io.create_unnamed(directory.fd()); });
  if (unnamed >= 0) return OpenFd(io, unnamed);
  if (unnamed != -EOPNOTSUPP) check_io(unnamed, "create", path);
  const std::string name = temporary_name("swap");
  const int named = retry_interrupted([&] { return io.open_or_create_at(directory.fd(), name); });
  check_io(named, "create", path);
  OpenFd fd(io, named);
  check_io(retry_interrupted([&] { return io.unlink_at(directory.fd(), name); }), "unlink", directory.path_of(name));
  return fd;
}

}  // namespace

SwapFile::SwapFile(Io& io, const std::string& path, int64_t bytes)
    : io_(&io), path_(concat("the swap file in ", path)) {
  const Directory directory = Directory::open(io, path);
  fd_ = open_unnamed(io, directory, path_);
  on_tmpfs_ = io.is_in_memory(fd_.get());
  if (bytes > 0) grow(bytes);
  direct_ = retry_interrupted([&] { return io.set_direct(fd_.get(), true); }) == 0;
}

void SwapFile::grow(int64_t bytes) {
  const int64_t more = bytes - bytes_;
  // The free space is checked first, because a reservation of scarce space can take long and then fail.
  const int64_t free = io_->free_bytes(fd_.get());
  int result = free >= 0 && free < more ? -ENOSPC : 0;
  if (result == 0) result = retry_interrupted([&] { return io_->fallocate(fd_.get(), bytes); });
  if (result == -EOPNOTSUPP || result == -ENOSYS)
    result = retry_interrupted([&] { return io_->ftruncate(fd_.get(), bytes); });
  if (result < 0)
    throw_io_error(
        "reserve space for", path_, result,
        concat("needs ", more, bytes_ > 0 ? " more bytes" : " bytes", free < 0 ? "" : concat(", ", free, " are free")));
  bytes_ = bytes;
}

SwapFile::~SwapFile() {
  if (fd_ && process_.is_own()) retry_interrupted([&] { return io_->ftruncate(fd_.get(), 0); });
}

}  // namespace zeroshard
