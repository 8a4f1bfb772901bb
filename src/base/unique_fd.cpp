#include "base/unique_fd.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "zeroshard/error.h"

namespace zeroshard {

void throw_errno(const char* what) {
  throw Error(concat(what, ": ", std::strerror(errno)));
}

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace zeroshard
