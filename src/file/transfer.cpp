#include "file/transfer.h"

#include "base/check.h"

namespace zeroshard {

void write_all(Io& io, int fd, std::string_view path, const void* data, int64_t bytes, int64_t offset) {
  bool direct = false;
  write_all_direct(io, fd, path, data, bytes, offset, direct);
}

void write_all_direct(Io& io, int fd, std::string_view path, const void* data, int64_t bytes, int64_t offset,
                      bool& direct) {
  for (int64_t done = 0; done < bytes;) {
    const auto* const from = static_cast<const std::byte*>(data) + done;
    const int64_t result = retry_interrupted([&] { return io.pwrite(fd, from, size_t(bytes - done), offset + done); });
    if (result > 0) {
      done += result;
    } else if (result == -EINVAL && direct) {
      // O_DIRECT does not work here. The device needs another alignment, or a short write has left a position that is
      // not aligned.
      direct = false;
      check_io(retry_interrupted([&] { return io.set_direct(fd, false); }), "write", path);
    } else {
      const int64_t error = result == 0 ? -EIO : result;
      const std::string full = space_details(io, fd, error, bytes - done);
      throw_io_error("write", path, error, concat("at byte ", offset + done, full.empty() ? "" : ", ", full));
    }
  }
}

void read_at_least(Io& io, int fd, std::string_view path, void* data, int64_t needed, int64_t bytes, int64_t offset,
                   bool& direct) {
  for (int64_t done = 0; done < needed;) {
    auto* const to = static_cast<std::byte*>(data) + done;
    const int64_t result = retry_interrupted([&] { return io.pread(fd, to, size_t(bytes - done), offset + done); });
    if (result > 0) {
      done += result;
    } else if (result == -EINVAL && direct) {
      direct = false;
      check_io(retry_interrupted([&] { return io.set_direct(fd, false); }), "read", path);
    } else if (result == 0) {
      throw IoError(concat(path, " is too short: it ends at byte ", offset + done, ", and ", needed,
                           " bytes were to be read at ", offset));
    } else {
      throw_io_error("read", path, result, concat("at byte ", offset + done));
    }
  }
}

std::string space_details(Io& io, int fd, int64_t result, int64_t needed_bytes) {
  if (result != -ENOSPC && result != -EDQUOT) return {};
  const int64_t free = io.free_bytes(fd);
  return concat("needs ", needed_bytes, " bytes", free < 0 ? "" : concat(", ", free, " are free"));
}

}  // namespace zeroshard
