#include "torch_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "zeroshard/error.h"

namespace zeroshard::cli {

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
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments.front(), arguments.data());
  throw Error("cannot start '" + argv.front() + "': " + std::strerror(errno));
}

}  // namespace zeroshard::cli
