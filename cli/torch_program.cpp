#include "torch_program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

// Returns pointers to the words of `argv` and a null pointer at the end. The pointers are valid as long as `argv` is
// not changed.
std::vector<char*> pointers_to(const std::vector<std::string>& argv) {
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

Error cannot_start(const std::vector<std::string>& argv, int error) {
  return Error("cannot start '" + argv.front() + "': " + std::strerror(error));
}

}  // namespace

std::string torch_program() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path program = self.parent_path() / "zeroshard-torch";
  if (error || !std::filesystem::exists(program))
    throw Error(
        "this command needs the program '" + program.string() +
        "', which is not there: build zeroshard with LibTorch (ZEROSHARD_WITH_TORCH=ON), and install its component lm");
  return program.string();
}

void become(const std::vector<std::string>& argv) {
  ::execv(argv.front().c_str(), pointers_to(argv).data());
  throw cannot_start(argv, errno);
}

int run_to_end(const std::vector<std::string>& argv) {
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, argv.front().c_str(), nullptr, nullptr, pointers_to(argv).data(), environ);
  if (failed != 0) throw cannot_start(argv, failed);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) throw cannot_start(argv, errno);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace zeroshard::cli
