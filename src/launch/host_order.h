#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// What `zeroshard run` on one host is told by the one that starts it, over the standard input of ssh: nothing of it
// meets a shell. After an order come control lines, "beat" or "signal NUMBER", until the end of the connection.
struct HostOrder {
  std::string version;                   // of zeroshard, the same on both sides
  std::string nonce;                     // in the marks of host_relay_lines.h
  double patience_s = 0;                 // how long the connection may be silent; 0: without limit
  std::string folder;                    // where the job runs
  std::vector<std::string> arguments;    // of `zeroshard run`
  std::vector<std::string> environment;  // "NAME=value", beside the host's own
};

// A line with the number of bytes that follow, and these: each value as "LENGTH:value,".
std::string text_of(const HostOrder& order);
// Throws ValueError for what text_of() cannot have written, and for an order of another version of zeroshard.
HostOrder parse_order(std::string_view text);
// Reads an order, and nothing of what follows it, from a pipe or socket. Throws ValueError as parse_order() does, and
// when the order has not come within a minute.
HostOrder read_order(int fd);

// 0 for a line that names no signal which a launcher passes on.
int signal_of_control_line(std::string_view line);

}  // namespace zeroshard
