#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace zeroshard {

// The connection to the launcher of another host, over which lines of text travel. Never waits.
class HostPeer {
 public:
  using Clock = std::chrono::steady_clock;

  // `socket` becomes non-blocking.
  explicit HostPeer(UniqueFd socket);

  // The lines that have arrived. After the end of the connection, or a line that is no launcher's, is_open() is false.
  std::vector<std::string> receive();
  // Control characters of `line` are escaped. A line that the system does not take at once is lost, as is one to a
  // launcher that has gone: receive() notices both.
  void send(std::string_view line);
  void close() { socket_.reset(); }

  bool is_open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  double silent_s() const;  // since anything arrived, or since forgive()
  void forgive() { heard_ = Clock::now(); }

  int node = -1;         // the host's number; -1: it has not told
  std::string host;      // its name
  bool is_over = false;  // it has told how its ranks ended, or was found to be gone

 private:
  UniqueFd socket_;
  std::string begun_;  // a line whose end has not arrived
  Clock::time_point heard_ = Clock::now();
};

}  // namespace zeroshard
