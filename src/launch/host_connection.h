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

// One host of a job, and how to reach it.
struct HostStart {
  std::string name;                // as the hostfile has it
  std::vector<std::string> reach;  // ssh and its arguments, or zeroshard if the host is this one; reach[0] is a path
  HostOrder order;
  bool is_here = false;  // whether `reach` is zeroshard itself, which handles signals as ssh does not
};

// The connection to one host of a job, through a child process such as ssh. The launcher that starts the job owns the
// connection, and uses it to send the order, pass signals on and read output. No method waits. The caller must ignore
// SIGPIPE, because the process can end before it has read its input.
class HostConnection {
 public:
  // Starts the child process, or throws Error. The kernel kills that process when this one dies.
  HostConnection(const HostStart& start, const sigset_t& signal_mask);

  const std::string& name() const { return name_; }
  void add_to(std::vector<pollfd>& fds, bool reads) const;
  // Queues a control line for look() to send: "beat", or for example "signal 15". If the host is gone, the line is
  // lost.
  void send(std::string_view line);
  // Reads new bytes of stream 1 or 2. Returns the lines that these bytes complete, each with its newline, and at the
  // end of the stream the incomplete line, too. Returns "" if no line is complete, and nothing if there is nothing new.
  // The marks of host_relay_lines.h are removed from stream 1.
  std::optional<std::string> read(int stream);
  // Sends as much of the order and of the control lines as the process takes now. Notes whether the process has ended.
  void look();
  void close_input() { input_.reset(); }  // makes zeroshard on the host kill its ranks
  void kill();

  bool has_begun() const { return has_begun_; }    // whether zeroshard has begun to run on the host
  bool is_over() const { return exited_; }         // whether the child process has ended
  bool was_killed() const { return was_killed_; }  // by kill()
  // Returns the exit code of zeroshard on the host. Returns nothing until zeroshard has told the code, which never
  // happens if the connection is lost before that or is never made.
  std::optional<int> code() const { return code_; }
  // Returns the last line that the child process wrote to stderr, or "" if there is none.
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
  std::string pending_;  // bytes that could not be sent yet
  std::array<Stream, 2> streams_;
  Tail tail_;  // the last lines of the child's stderr
  bool has_begun_ = false, exited_ = false, was_killed_ = false;
  std::optional<int> code_;
};

}  // namespace zeroshard
