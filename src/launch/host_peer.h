#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace zeroshard {

// A connection to the launcher of another host, which carries lines of text. No method waits.
class HostPeer {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes `socket` non-blocking.
  explicit HostPeer(UniqueFd socket);

  // Returns the lines that have arrived. After the end of the connection, and after a line that no launcher sends,
  // is_open() returns false.
  std::vector<std::string> receive();
  // Sends `line`, with control characters escaped. The line is lost if the system does not take it at once, or if the
  // other launcher has gone. receive() notices both.
  void send(std::string_view line);
  void close() { socket_.reset(); }

  bool is_open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  double silent_s() const;  // seconds since anything arrived, or since forgive()
  void forgive() { heard_ = Clock::now(); }

  int node = -1;         // the host's number; -1: it has not sent the number yet
  std::string host;      // the host's name
  bool is_over = false;  // the host has told how its ranks ended, or its launcher was found to be gone

 private:
  UniqueFd socket_;
  std::string begun_;  // the beginning of a line whose end has not arrived
  Clock::time_point heard_ = Clock::now();
};

}  // namespace zeroshard
