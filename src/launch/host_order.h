#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// An order to run a job. The `zeroshard run` that starts a job starts another `zeroshard run` on each host of the job,
// over ssh or, on its own host, directly. The first one sends an order to each of the others. The order travels over
// standard input, so no shell interprets any part of it. Control lines ("beat" or "signal NUMBER") follow the order
// until the end of the connection.
struct HostOrder {
  std::string version;                   // zeroshard's version, which must be the same on both sides
  std::string nonce;                     // random text that is part of the marks of host_relay_lines.h
  double patience_s = 0;                 // how many seconds the connection may be silent; 0: no limit
  std::string folder;                    // working directory of the job
  std::vector<std::string> arguments;    // arguments of `zeroshard run`
  std::vector<std::string> environment;  // "NAME=value" strings, added to the host's own environment
};

// Returns the order as text. It has a line with the number of bytes that follow, and then each value as
// "LENGTH:value,". Throws ValueError if the order is too long.
std::string text_of(const HostOrder& order);
// Throws ValueError for a text that text_of() does not make, and for an order of another version of zeroshard.
HostOrder parse_order(std::string_view text);
// Reads an order from a pipe or socket, and no byte more. Throws the errors of parse_order(), and ValueError if `fd` is
// a terminal or ends too early, or if the order has not come within a minute.
HostOrder read_order(int fd);

// Returns the signal that a control line names. Returns 0 if the line names no signal that a launcher passes on.
int signal_of_control_line(std::string_view line);

}  // namespace zeroshard
