#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace zeroshard {

// A connection to the launcher of another host. It carries lines of text. No method waits.
class HostPeer {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes `socket` non-blocking.
  explicit HostPeer(UniqueFd socket);

  // Returns the lines that have arrived, with control characters escaped. Closes the socket at the end of the
  // connection, and when a line gets longer than any that a launcher sends.
  std::vector<std::string> receive();
  // Sends `line`, with control characters escaped. If the system takes only a part of the line now, later calls of
  // send() and receive() send the rest. The line is lost if the other launcher has gone, which only receive() notices.
  void send(std::string_view line);
  void close() { socket_.reset(); }

  bool is_open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  double silent_s() const;  // seconds since something arrived, or since forgive()
  void forgive() { heard_ = Clock::now(); }

  int node = -1;         // the number of the launcher's host; -1: it has not sent the number yet
  std::string host;      // the name of the launcher's host
  bool is_over = false;  // whether the launcher has said how its ranks ended, or was found to be gone

 private:
  void send_rest();

  UniqueFd socket_;
  std::string unsent_;  // what the system has not taken yet
  std::string begun_;   // a line whose end has not arrived yet
  Clock::time_point heard_ = Clock::now();
};

}  // namespace zeroshard
