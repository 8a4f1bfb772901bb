#include "launch/process_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.h"

namespace zeroshard {

std::string read_process_file(pid_t pid, const char* name) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  std::string text;
  std::array<char, 4096> piece;
  ssize_t size;
  while ((size = ::read(fd.get(), piece.data(), piece.size())) > 0) text.append(piece.data(), size_t(size));
  return size == 0 ? text : std::string();
}

}  // namespace zeroshard
