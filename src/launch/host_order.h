#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// The job that `zeroshard run` on one host gets from the launcher that started it over ssh. The order travels over the
// standard input of ssh, so no shell interprets any part of it. After the order, control lines ("beat" or "signal
// NUMBER") follow until the end of the connection.
struct HostOrder {
  std::string version;                   // zeroshard's version, which must be the same on both sides
  std::string nonce;                     // is part of the marks of host_relay_lines.h
  double patience_s = 0;                 // how long the connection may be silent; 0: no limit
  std::string folder;                    // working directory of the job
  std::vector<std::string> arguments;    // arguments of `zeroshard run`
  std::vector<std::string> environment;  // "NAME=value" strings, added to the host's own environment
};

// Returns the order as text. It has a line with the number of bytes that follow, and then each value as
// "LENGTH:value,".
std::string text_of(const HostOrder& order);
// Throws ValueError for a text that text_of() does not make, and for an order of another version of zeroshard.
HostOrder parse_order(std::string_view text);
// Reads an order from a pipe or socket, and no byte more. Throws the errors of parse_order(), and ValueError if the
// order has not come within a minute.
HostOrder read_order(int fd);

// Returns the signal that a control line names. Returns 0 if the line names no signal that a launcher passes on.
int signal_of_control_line(std::string_view line);

}  // namespace zeroshard
