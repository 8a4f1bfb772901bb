#pragma once
#include <poll.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/console_writer.h"
#include "base/unique_fd.h"
#include "launch/line_buffer.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// Says how a stream (stdout or stderr) of a rank reaches the launcher's own stream.
enum class OutputMode {
  kDirect,    // the rank inherits the launcher's own descriptor
  kRaw,       // through a pipe, unchanged
  kPrefixed,  // through a pipe, with the rank before each line
};

// Chooses the mode of stream 1 or 2. Local rank 0 gets a terminal directly, for its progress bars. A job of one rank
// has no prefixes.
OutputMode output_mode(const LaunchOptions& options, int local_rank, int stream);

// One stream of a rank, as the supervisor reads it.
struct RankStream {
  int rank = 0;
  int stream = 1;
  OutputMode mode = OutputMode::kPrefixed;
  UniqueFd source;  // empty if the mode is kDirect
};

// Carries the ranks' output to the console and to log files, and keeps the last lines for reports. Never blocks, even
// if a reader stops; see Note [Slow consoles].
class RankOutput {
 public:
  // Starts threads, so construct it after the ranks. Appends to existing logs if `append_logs`.
  RankOutput(const LaunchOptions& options, std::vector<RankStream> streams, bool append_logs);

  // Adds the ranks' streams to `fds`, for poll(2). Adds none while the console is full.
  void add_to(std::vector<pollfd>& fds) const;
  // Reads the available data, up to a limit per stream.
  void read_some();
  // Returns whether add_to() adds no streams because the console is full. The caller then tries again soon.
  bool throttled() const;
  // Shows incomplete lines that are older than a few seconds.
  void flush_stale();
  // Writes a line of the launcher to stderr.
  void notice(std::string_view text);
  // Reads all remaining data. The caller calls it when no process writes any more.
  void drain();
  // Waits until everything is written, or until the reader has stopped reading.
  void finish();

  // Returns the last lines that `rank` wrote to stderr; none if they went to the terminal directly.
  std::vector<std::string> last_stderr_lines(int rank, size_t count) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    RankStream from;
    LineBuffer lines;
    Tail tail;
    Clock::time_point line_since;
  };
  struct Log {
    int rank;
    UniqueFd file;
  };

  // Reads once. Returns false at the end of the stream, and if no more data is available at present.
  bool read_once(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void write_log(int rank, std::string_view bytes);
  ConsoleWriter& console(int stream) const;

  std::vector<Stream> streams_;
  std::vector<Log> logs_;
  // The consoles of stdout and stderr. The second is null if both streams are the same file.
  std::array<std::unique_ptr<ConsoleWriter>, 2> consoles_;
  std::vector<char> buffer_;
};

}  // namespace zeroshard
