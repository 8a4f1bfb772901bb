// Decides what to run. Counts the host's devices, finds Python, and makes the argv of a rank.
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "launch/program.h"
#include "zeroshard/launch.h"

namespace zeroshard {
namespace {

bool is_executable(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::string find_program(const std::string& script) {
  if (script.find('/') != script.npos || is_executable(script)) {
    ZS_CHECK(std::filesystem::exists(script), "no such file: '", script, "'");
    ZS_CHECK(is_executable(script), "'", script,
             "' cannot be run: it neither ends in .py nor is executable (chmod +x)");
    return script.find('/') != script.npos ? script : "./" + script;
  }
  const std::string path = find_in_path(script);
  ZS_CHECK(!path.empty(), "no such program: '", script, "' is neither a file here nor in PATH");
  return path;
}

// Returns the entries of CUDA_VISIBLE_DEVICES up to the first invalid one, at which CUDA stops.
std::vector<std::string> entries_of(const std::string& list) {
  std::istringstream entries(list);
  std::vector<std::string> names;
  for (std::string entry; std::getline(entries, entry, ',') && !entry.empty() && entry[0] != '-';) {
    names.push_back(entry);
  }
  return names;
}

// Returns the number of CUDA devices of this host, visible or not.
int count_devices() {
  int devices = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = file.path().filename();
    devices += name.size() > 6 && name.rfind("nvidia", 0) == 0 &&
               std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return devices;
}

}  // namespace

std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable(file)) return file;
  }
  return {};
}

std::string find_python() {
  if (const char* venv = std::getenv("VIRTUAL_ENV"); venv != nullptr && *venv != 0) {
    const std::string python = std::string(venv) + "/bin/python";
    if (is_executable(python)) return python;
  }
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* name : {"python", "python3"}) {
    if (!error && is_executable(folder / name)) return folder / name;
  }
  for (const char* name : {"python3", "python"}) {
    if (std::string python = find_in_path(name); !python.empty()) return python;
  }
  throw ValueError("no python3 found: activate a virtual environment (VIRTUAL_ENV) or add it to PATH");
}

bool has_gpus() {
  return count_devices() > 0;
}

std::vector<std::string> visible_gpus() {
  const int devices = count_devices();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> names = entries_of(visible != nullptr ? visible : "");
  if (visible == nullptr) {
    for (int device = 0; device < devices; ++device) names.push_back(std::to_string(device));
    return names;
  }
  // MIG devices are parts of a device, so there can be more of them than devices.
  const bool slices = std::string_view(visible).find("MIG") != std::string_view::npos;
  if (devices > 0 && !slices && names.size() > size_t(devices)) names.resize(size_t(devices));
  return names;
}

int count_gpus() {
  return static_cast<int>(visible_gpus().size());
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int count_cpus() {
  const size_t usable = usable_cpus().size();
  return usable > 0 ? static_cast<int>(usable) : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::vector<std::string> resolve(const Program& program) {
  const std::string& script = program.script;
  ZS_CHECK(!script.empty(), "the script's name is empty");
  std::vector<std::string> argv;
  if (program.module) {
    ZS_CHECK(script[0] != '-', "'", script, "' is not the name of a module");
    argv = {find_python(), "-u", "-m", script};
  } else if (!program.no_python && script.ends_with(".py")) {
    ZS_CHECK(std::filesystem::exists(script), "no such file: '", script, "'");
    // "./" is added because Python must not take the script as an option.
    argv = {find_python(), "-u", script[0] == '-' ? "./" + script : script};
  } else {
    argv = {find_program(script)};
  }
  argv.insert(argv.end(), program.arguments.begin(), program.arguments.end());
  return argv;
}

}  // namespace zeroshard
