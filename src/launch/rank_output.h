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

// Says how a rank's stream (stdout or stderr) reaches the launcher's own stream.
enum class OutputMode {
  kDirect,    // the rank inherits the launcher's descriptor
  kRaw,       // through a pipe, unchanged
  kPrefixed,  // through a pipe, with the rank's number before each line
};

// Chooses the mode of stream 1 or 2 of a rank. The mode is kPrefixed, except in three cases:
// - The job has a single rank.
// - The stream is stdout, and options.prefix_stdout is false.
// - The rank is local rank 0 of a job on a single host, and the launcher's own stream is a terminal. So the progress
//   bars of this rank work.
//
// In these cases the mode is kDirect if options.log_dir is empty and the stream is stdout or, on a single host, a
// terminal. Otherwise it is kRaw.
OutputMode output_mode(const LaunchOptions& options, int local_rank, int stream);

// One stream of a rank, from which the supervisor reads.
struct RankStream {
  int rank = 0;
  int stream = 1;
  OutputMode mode = OutputMode::kPrefixed;
  UniqueFd source;  // empty if the mode is kDirect
};

// Carries the ranks' output to the console and to log files, and keeps the last lines for reports. Only finish() waits
// for the console's reader; see Note [Slow consoles].
class RankOutput {
 public:
  // Starts threads, so it must be made after the ranks. If `append_logs` is true, appends to existing logs; otherwise
  // empties them. Throws Error if a log cannot be written.
  RankOutput(const LaunchOptions& options, std::vector<RankStream> streams, bool append_logs);

  // Adds the ranks' streams to `fds`, for poll(2). Leaves out streams whose console is full.
  void add_to(std::vector<pollfd>& fds) const;
  // Reads the available data, up to a limit for each stream, as long as the console of the stream is not full.
  void read_some();
  // Returns whether a console is full, so that add_to() leaves out its streams. If so, the caller should try again
  // soon.
  bool throttled() const;
  // Shows incomplete lines that began at least ten seconds ago.
  void flush_stale();
  // Writes text of the launcher to stderr, with "[zeroshard] " before each line.
  void notice(std::string_view text);
  // Reads all data that is left. Must be called only when no process writes any more.
  void drain();
  // Waits until everything is written, or until the reader has stopped reading.
  void finish();

  // Returns the last lines that `rank` wrote to stderr. Returns none if the lines went to the terminal directly.
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

  // Reads once. Returns false at the end of the stream, and if there is no data at present.
  bool read_once(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void write_log(int rank, std::string_view bytes);
  ConsoleWriter& console(int stream) const;

  std::vector<Stream> streams_;
  std::vector<Log> logs_;
  // The consoles of stdout and stderr. The second is null if both are the same file.
  std::array<std::unique_ptr<ConsoleWriter>, 2> consoles_;
  std::vector<char> buffer_;
};

}  // namespace zeroshard
