#include "launch/rank_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
// The most reads of one stream in a round. There is a limit because a rank with much output must not delay signals or
// the output of others.
constexpr int kReadsPerRound = 4;
constexpr std::chrono::seconds kShowIncompleteAfter{10};
constexpr ConsoleWriter::Seconds kConsolePatience{5}, kLastPatience{2};

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// Opens a log that only this user can read. Does not follow a link, because another user who can write to the folder
// could otherwise choose a file to be truncated.
UniqueFd open_log(const std::string& folder, int rank, bool append) {
  const std::string path = concat(folder, "/rank-", rank, ".log"), what = "cannot write " + path;
  // O_NONBLOCK is set because otherwise the opening of a FIFO would wait for a reader forever.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  UniqueFd file(::open(path.c_str(), kFlags, 0600));
  struct stat found {};
  const bool other =
      file ? ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) : errno == ELOOP || errno == ENXIO;
  if (other)
    throw Error(concat(what, ": it is a link or a device, not a regular file. Delete it, or give another --log-dir"));
  if (!file || (!append && ::ftruncate(file.get(), 0) != 0)) throw_errno(what.c_str());
  return file;
}

}  // namespace

OutputMode output_mode(const LaunchOptions& options, int local_rank, int stream) {
  const bool single = options.nproc == 1 && options.nnodes == 1;
  const bool unchanged = single || (stream == STDOUT_FILENO && !options.prefix_stdout);
  // With several hosts, a terminal does not count, because Open MPI gives the launcher of each host a terminal of its
  // own.
  const bool terminal = options.nnodes == 1 && ::isatty(stream) == 1;
  if (!unchanged && !(terminal && local_rank == 0)) return OutputMode::kPrefixed;
  // If stderr is no terminal, it goes through a pipe, so that the report of a failure can show its last lines.
  return options.log_dir.empty() && (terminal || stream == STDOUT_FILENO) ? OutputMode::kDirect : OutputMode::kRaw;
}

RankOutput::RankOutput(const LaunchOptions& options, std::vector<RankStream> streams, bool append_logs)
    : buffer_(kReadBytes) {
  for (RankStream& from : streams) {
    if (from.source) ::fcntl(from.source.get(), F_SETFL, O_NONBLOCK);
    if (!options.log_dir.empty() && from.stream == STDOUT_FILENO) {
      logs_.push_back({from.rank, open_log(options.log_dir, from.rank, append_logs)});
    }
    const std::string prefix = from.mode == OutputMode::kPrefixed ? concat("[rank ", from.rank, "] ") : "";
    streams_.push_back({std::move(from), LineBuffer(prefix), Tail(), {}});
  }
  consoles_[0] = std::make_unique<ConsoleWriter>(STDOUT_FILENO, kConsolePatience);
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) {
    consoles_[1] = std::make_unique<ConsoleWriter>(STDERR_FILENO, kConsolePatience);
  }
}

ConsoleWriter& RankOutput::console(int stream) const {
  return stream == STDERR_FILENO && consoles_[1] ? *consoles_[1] : *consoles_[0];
}

bool RankOutput::throttled() const {
  return console(STDOUT_FILENO).full() || console(STDERR_FILENO).full();
}

void RankOutput::add_to(std::vector<pollfd>& fds) const {
  for (const Stream& stream : streams_) {
    const bool wanted = stream.from.source && !console(stream.from.stream).full();
    if (wanted) fds.push_back({stream.from.source.get(), POLLIN, 0});
  }
}

void RankOutput::read_some() {
  for (Stream& stream : streams_) {
    for (int i = 0; i < kReadsPerRound && !console(stream.from.stream).full() && read_once(stream); ++i) {
    }
  }
}

bool RankOutput::read_once(Stream& stream) {
  if (!stream.from.source) return false;
  const ssize_t got = ::read(stream.from.source.get(), buffer_.data(), buffer_.size());
  if (got > 0) take(stream, {buffer_.data(), static_cast<size_t>(got)});
  if (got > 0 || (got < 0 && errno == EINTR)) return true;
  if (got < 0 && errno == EAGAIN) return false;
  std::string rest;
  stream.lines.flush(rest);
  console(stream.from.stream).write(rest);
  stream.from.source.reset();
  return false;
}

void RankOutput::take(Stream& stream, std::string_view bytes) {
  if (stream.from.stream == STDERR_FILENO) stream.tail.append(bytes);
  write_log(stream.from.rank, bytes);
  if (stream.from.mode == OutputMode::kRaw) {
    console(stream.from.stream).write(bytes);
    return;
  }
  std::string lines;
  const bool was_empty = stream.lines.empty();
  stream.lines.append(bytes, lines);
  if (was_empty || !lines.empty()) stream.line_since = Clock::now();
  console(stream.from.stream).write(lines);
}

void RankOutput::write_log(int rank, std::string_view bytes) {
  for (Log& log : logs_) {
    if (log.rank != rank || !log.file) continue;
    while (!bytes.empty()) {
      const ssize_t written = ::write(log.file.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        notice(concat("the log of rank ", rank, " ends here: ", std::strerror(errno)));
        log.file.reset();
        return;
      }
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
}

void RankOutput::flush_stale() {
  for (Stream& stream : streams_) {
    if (stream.lines.empty() || Clock::now() - stream.line_since < kShowIncompleteAfter) continue;
    std::string line;
    stream.lines.flush(line);
    console(stream.from.stream).write(line);
  }
}

void RankOutput::notice(std::string_view text) {
  LineBuffer lines("[zeroshard] ");
  std::string out;
  lines.append(text, out);
  lines.flush(out);
  console(STDERR_FILENO).write(out);
}

void RankOutput::drain() {
  for (Stream& stream : streams_) {
    // Reads at most what the pipes hold, even if the console is full.
    while (read_once(stream)) {
    }
    std::string rest;
    stream.lines.flush(rest);
    console(stream.from.stream).write(rest);
  }
}

void RankOutput::finish() {
  for (const auto& console : consoles_) {
    if (console) console->drain(kLastPatience);
  }
}

std::vector<std::string> RankOutput::last_stderr_lines(int rank, size_t count) const {
  for (const Stream& stream : streams_) {
    if (stream.from.rank == rank && stream.from.stream == STDERR_FILENO) return stream.tail.lines(count);
  }
  return {};
}

}  // namespace zeroshard
