#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/hostfile.h"

namespace zeroshard::cli {

// The launcher with which the command for several hosts starts a program on another host, and the launcher's options.
// The members have the names of DeepSpeed's options.
struct Reach {
  std::string launcher = "ssh", launcher_args;
  std::optional<int> ssh_port;
};

// Throws ValueError if the launcher is unknown, does not take the words of --launcher_args, or does not use --ssh_port.
void check_reach(const Reach& reach);

// Returns the command that runs `program` on `host`, with standard input, output and error connected. A connection of
// ssh ends when it has been silent for `patience_s`. Throws ValueError if the launcher is not in PATH, or if the host's
// name is USER@HOST and only ssh could log in as USER.
std::vector<std::string> command_on(const JobHost& host, const Reach& reach, double patience_s,
                                    const std::vector<std::string>& program);

}  // namespace zeroshard::cli
