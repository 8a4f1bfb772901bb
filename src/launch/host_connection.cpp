#include "launch/host_connection.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "base/format.h"
#include "launch/environment.h"
#include "launch/host_relay_lines.h"
#include "launch/rank_process.h"

namespace zeroshard {
namespace {

constexpr int kReadsAtOnce = 4;

// Returns the signal mask of the child process. In ssh, signals that end a job are blocked. A signal to all processes
// of a session would otherwise end ssh, and with it the connection over which the hosts are told of the signal.
sigset_t mask_of(const HostStart& start, sigset_t mask) {
  if (start.is_here) return mask;
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) ::sigaddset(&mask, signal);
  return mask;
}

}  // namespace

HostConnection::HostConnection(const HostStart& start, const sigset_t& signal_mask)
    : name_(start.name), nonce_(start.order.nonce), pending_(text_of(start.order)) {
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
  pid_ = spawn({start.reach,
                own_environment(),
                {in.read_end.get(), out.write_end.get(), err.write_end.get()},
                mask_of(start, signal_mask),
                -1,
                {}});
  input_ = std::move(in.write_end);
  streams_[0].source = std::move(out.read_end);
  streams_[1].source = std::move(err.read_end);
  for (const UniqueFd* fd : {&input_, &streams_[0].source, &streams_[1].source}) set_nonblocking(fd->get());
}

void HostConnection::add_to(std::vector<pollfd>& fds, bool reads) const {
  if (input_ && !pending_.empty()) fds.push_back({input_.get(), POLLOUT, 0});
  for (const Stream& stream : streams_)
    if (reads && stream.source) fds.push_back({stream.source.get(), POLLIN, 0});
}

void HostConnection::send(std::string_view line) {
  if (input_) pending_ += concat(line, "\n");
}

std::optional<std::string> HostConnection::read(int stream_number) {
  Stream& stream = streams_[size_t(stream_number - 1)];
  std::string lines;
  bool has_any = false;
  std::array<char, size_t{64} << 10> buffer;
  for (int i = 0; i < kReadsAtOnce && stream.source; ++i) {
    const ssize_t got = ::read(stream.source.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    has_any = true;
    if (got <= 0) {
      stream.source.reset();
      stream.lines.flush(lines);
      break;
    }
    const std::string_view bytes(buffer.data(), static_cast<size_t>(got));
    stream.lines.append(bytes, lines);
    if (stream_number == STDERR_FILENO) tail_.append(bytes);
  }
  if (!has_any) return {};
  return stream_number == STDOUT_FILENO ? without_marks(lines) : lines;
}

// Removes the marks from `lines`, and notes in has_begun_ and code_ what the marks say. A mark can be anywhere in a
// line, because a shell's start file or a rank might have written the beginning of the line.
std::string HostConnection::without_marks(std::string_view lines) {
  std::string result;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(line.size() + 1);
    const std::string mark = has_begun_ ? end_mark(nonce_) : begin_mark(nonce_);
    const size_t at = line.rfind(mark);
    const std::string_view rest = at == line.npos ? "" : line.substr(at + mark.size());
    int code = 0;
    const bool is_number =
        std::from_chars(rest.data(), rest.data() + rest.size(), code).ptr == rest.data() + rest.size();
    const bool is_mark = at != line.npos && (has_begun_ ? !rest.empty() && is_number : rest.empty());
    if (!is_mark || at > 0) result += concat(line.substr(0, is_mark ? at : line.npos), "\n");
    if (is_mark && has_begun_) code_ = code;
    has_begun_ = has_begun_ || is_mark;
  }
  return result;
}

void HostConnection::look() {
  while (input_ && !pending_.empty()) {
    const ssize_t written = ::write(input_.get(), pending_.data(), pending_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EAGAIN) input_.reset();  // the process does not read any more
    if (written < 0) break;
    pending_.erase(0, static_cast<size_t>(written));
  }
  exited_ = exited_ || ::waitpid(pid_, nullptr, WNOHANG) == pid_;
}

void HostConnection::kill() {
  if (exited_) return;
  was_killed_ = true;
  ::kill(pid_, SIGKILL);
}

std::string HostConnection::last_words() const {
  const std::vector<std::string> lines = tail_.lines(1);
  return lines.empty() ? "" : lines.front();
}

}  // namespace zeroshard
