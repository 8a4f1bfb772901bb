#include "base/read_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/shown_text.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr size_t kMostPathBytes = 4096;

struct Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

template <typename Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

std::string read_text(const std::string& path, std::string_view hint, int64_t most_bytes) {
  const auto fail = [&](const std::string& reason) {
    throw IoError(concat("cannot read '", shown_text(path, kMostPathBytes), "' (", reason, ")", hint));
  };
  if (path.find('\0') != path.npos) fail("its name has a zero byte");
  // O_NONBLOCK is set because otherwise the opening of a FIFO would wait for a writer forever.
  const Descriptor file(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
  struct stat found {};
  if (file.fd < 0 || ::fstat(file.fd, &found) != 0) fail(std::strerror(errno));
  if (!S_ISREG(found.st_mode)) fail("it is not a regular file");
  const auto check_size = [&](int64_t bytes) {
    if (bytes > most_bytes) fail(concat("it has ", bytes, " bytes; at most ", most_bytes, " are read"));
  };
  check_size(found.st_size);
  // The loop reads until the end and does not trust the size, because files of /proc report a size of 0, and other
  // files can grow.
  std::string text(static_cast<size_t>(found.st_size), '\0');
  for (size_t end = 0;;) {
    if (end == text.size()) text.resize(std::max<size_t>(text.size() + 1, 4096));
    const ssize_t got = retried([&] { return ::read(file.fd, text.data() + end, text.size() - end); });
    if (got < 0) fail(std::strerror(errno));
    end += static_cast<size_t>(got);
    check_size(static_cast<int64_t>(end));
    if (got > 0) continue;
    text.resize(end);
    return text;
  }
}

}  // namespace zeroshard
