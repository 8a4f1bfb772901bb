// Finds the folders by which the Python package provides `deepspeed`, and makes values of PATH and PYTHONPATH with and
// without these folders.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/unique_fd.h"
#include "launch/program.h"
#include "launch/rank_process.h"
#include "zeroshard/launch.h"

namespace zeroshard {
namespace {

constexpr std::string_view kPythonPathEnd = "/zeroshard/compat/path", kPathEnd = "/zeroshard/compat/bin";
// The folders in which programs are looked for if PATH is not set.
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

// A Python program that prints the package's folder, as a script would find it, between two zero bytes. It first drops
// the empty entry of sys.path, which means the current folder, because a script has no such entry.
constexpr const char* kFind =
    "import importlib.util, os, sys\n"
    "sys.path[:] = filter(None, sys.path)\n"
    "spec = importlib.util.find_spec('zeroshard')\n"
    "if spec and spec.origin: os.write(1, b'\\0' + os.fsencode(os.path.dirname(os.path.abspath(spec.origin))) + "
    "b'\\0')\n";

std::vector<std::string> current_environment() {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

// Runs `argv` to its end and returns its standard output. Drops its standard error.
std::string output_of(const std::vector<std::string>& argv) {
  const UniqueFd nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Pipe pipe = make_pipe();
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  const std::vector<std::string> environment = current_environment();
  const pid_t pid = spawn({argv, environment, {nowhere.get(), pipe.write_end.get(), nowhere.get()}, mask, -1, {}});
  pipe.write_end.reset();
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::read(pipe.read_end.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

// Returns the folder of the Python package, or "" if there is none.
std::string find_package() {
  try {
    const std::string text = output_of({find_python(), "-c", kFind});
    const size_t begin = text.find('\0'), end = text.rfind('\0');
    return begin < end && end != text.npos ? text.substr(begin + 1, end - begin - 1) : "";
  } catch (const std::exception&) {  // there is no Python
    return {};
  }
}

// Returns `list`, whose entries are separated by colons, without the entries that end in `end`.
std::string without(std::string_view list, std::string_view end) {
  std::string rest;
  bool first = true;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t stop = std::min(list.find(':', begin), list.size());
    const std::string_view entry = list.substr(begin, stop - begin);
    if (!entry.ends_with(end)) {
      if (!first) rest += ':';
      rest += entry;
      first = false;
    }
    begin = stop + 1;
  }
  return rest;
}

std::string with_first(const std::string& folder, const std::string& rest) {
  return rest.empty() ? folder : folder + ":" + rest;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::optional<SearchPaths> paths_with_deepspeed() {
  const std::filesystem::path compat = std::filesystem::path(find_package()) / "compat";
  std::error_code error;
  if (!std::filesystem::exists(compat / "path/deepspeed/__init__.py", error)) return {};
  SearchPaths paths = paths_without_deepspeed();
  if (paths.path.empty()) paths.path = kDefaultPath;
  return SearchPaths{.python_path = with_first(compat / "path", paths.python_path),
                     .path = with_first(compat / "bin", paths.path)};
}

SearchPaths paths_without_deepspeed() {
  return {.python_path = without(variable("PYTHONPATH"), kPythonPathEnd), .path = without(variable("PATH"), kPathEnd)};
}

}  // namespace zeroshard
