#include "reach.h"

#include <array>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/shown_text.h"
#include "launch/program.h"
#include "ssh_words.h"

namespace zeroshard::cli {
namespace {

using Words = std::vector<std::string>;

// A program that starts one process on another host and connects its standard input.
struct Launcher {
  std::string_view name, program;
  std::array<const char*, 5> options;  // nullptr: no more
  std::string_view host_option;        // the option before the host's name
};
constexpr std::array kLaunchers{
    Launcher{
        "slurm", "srun", {"--nodes=1", "--ntasks=1", "--overlap", "--unbuffered", "--cpu-bind=none"}, "--nodelist"},
    Launcher{"openmpi", "mpirun", {"--np", "1", "--bind-to", "none"}, "--host"},
    Launcher{"mpich", "mpiexec.hydra", {"-n", "1", "-bind-to", "none"}, "-hosts"},
    Launcher{"impi", "mpiexec.hydra", {"-n", "1"}, "-hosts"},
};

bool is_ssh(const Reach& reach) {
  return reach.launcher == "ssh" || reach.launcher == "pdsh";
}

const Launcher& launcher_of(const Reach& reach) {
  for (const Launcher& launcher : kLaunchers)
    if (launcher.name == reach.launcher) return launcher;
  throw ValueError(concat("--launcher is ", shown_text(reach.launcher),
                          ", expected ssh, pdsh (which means ssh here), slurm, openmpi, mpich or impi"));
}

std::string path_of(std::string_view program, const Reach& reach) {
  std::string path = find_in_path(std::string(program));
  ZS_CHECK(!path.empty(), "there is no ", program, " in PATH, by which --launcher ", reach.launcher,
           " starts the hosts");
  return path;
}

// Puts the words of --launcher_args before zeroshard's own options. ssh takes the first value that it finds for an
// option, so the user's value wins.
Words ssh_command(const JobHost& host, const Reach& reach, double patience_s) {
  Words words{path_of("ssh", reach)};
  for (const std::string& word : ssh_words(reach.launcher_args)) words.push_back(word);
  const int interval_s = static_cast<int>(std::ceil(patience_s / 5));  // ssh ends after CountMax + 1 silent intervals
  for (const std::string& option : {std::string("BatchMode=yes"), std::string("ConnectTimeout=10"),
                                    std::string("ControlMaster=no"), std::string("ControlPath=none"),
                                    concat("ServerAliveInterval=", interval_s), std::string("ServerAliveCountMax=4")}) {
    words.emplace_back("-o");
    words.push_back(option);
  }
  words.emplace_back("-T");
  if (reach.ssh_port) words.insert(words.end(), {"-p", std::to_string(*reach.ssh_port)});
  words.insert(words.end(), {"--", host.name});
  return words;
}

Words launcher_command(const JobHost& host, const Reach& reach) {
  const Launcher& launcher = launcher_of(reach);
  ZS_CHECK(host.name == host.host(), "--launcher ", reach.launcher, " starts no program as another user, and the ",
           "hostfile names ", host.name, " in line ", host.line, ": leave the user out");
  Words words{path_of(launcher.program, reach)};
  for (const char* option : launcher.options)
    if (option != nullptr) words.emplace_back(option);
  words.emplace_back(launcher.host_option);
  words.push_back(host.name);
  for (const std::string& word : launcher_words(reach.launcher_args)) words.push_back(word);
  return words;
}

}  // namespace

void check_reach(const Reach& reach) {
  if (is_ssh(reach)) {
    ssh_words(reach.launcher_args);
    return;
  }
  launcher_of(reach);
  launcher_words(reach.launcher_args);
  ZS_CHECK(!reach.ssh_port, "--ssh_port is ", reach.ssh_port.value_or(0), ", and --launcher ", reach.launcher,
           " does not connect by ssh itself: leave --ssh_port out");
}

std::vector<std::string> command_on(const JobHost& host, const Reach& reach, double patience_s,
                                    const std::vector<std::string>& program) {
  Words words = is_ssh(reach) ? ssh_command(host, reach, patience_s) : launcher_command(host, reach);
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

}  // namespace zeroshard::cli
