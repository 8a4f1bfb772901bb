#pragma once
#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "launch/host_order.h"
#include "launch/line_buffer.h"

namespace zeroshard {

// One host of a job, and how it is reached.
struct HostStart {
  std::string name;                // as in the hostfile
  std::vector<std::string> reach;  // ssh and its arguments, or zeroshard on this host; reach[0] is a path
  HostOrder order;
};

// The process that reaches a host, from the side of the launcher that has started it: it is given the order, passes
// signals on and carries output back. Never waits.
class HostConnection {
 public:
  // Starts the process, which dies with this one.
  HostConnection(const HostStart& start, const sigset_t& signal_mask);

  const std::string& name() const { return name_; }
  void add_to(std::vector<pollfd>& fds, bool reads) const;
  // "signal 15" or "beat"; lost if the host is gone.
  void send(std::string_view line);
  // The lines that new bytes of stream 1 or 2 complete, each with its newline; nothing where no bytes have come. The
  // marks of host_relay_lines.h are taken out.
  std::optional<std::string> read(int stream);
  // Sends what is left of the order, and notes whether the process has ended.
  void look();
  void close_input() { input_.reset(); }  // the host's launcher kills its ranks
  void kill(int signal) const;

  bool has_begun() const { return has_begun_; }  // zeroshard runs there
  bool is_over() const { return exited_; }
  // With which code zeroshard has ended there; nothing: the connection was lost, or never came.
  std::optional<int> code() const { return code_; }
  // What ssh said last.
  std::string last_words() const;

 private:
  struct Stream {
    UniqueFd source;
    LineBuffer lines{""};
  };
  std::string without_marks(std::string_view lines);

  std::string name_, nonce_;
  pid_t pid_ = -1;
  UniqueFd input_;
  std::string pending_;  // not yet taken by the process
  std::array<Stream, 2> streams_;
  Tail tail_;  // of its stderr
  bool has_begun_ = false, exited_ = false;
  std::optional<int> code_;
};

}  // namespace zeroshard
