#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace zeroshard {

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number, which is `fd` unless another thread opens a file at this moment.
    if (::open("/dev/null", O_RDWR | O_NOCTTY) < 0) return;
  }
}

}  // namespace zeroshard
