#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>

#include "base/check.h"
#include "base/console_writer.h"
#include "monitor/progress_text.h"
#include "zeroshard/metrics.h"

namespace zeroshard {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr size_t kTimedUpdates = 50;  // the remaining time is computed from at most the last 50 updates
constexpr ConsoleWriter::Seconds kPatience{2};

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool can_draw(int fd) {
  const char* terminal = std::getenv("TERM");
  return ::isatty(fd) == 1 && !(terminal != nullptr && std::string_view(terminal) == "dumb");
}

size_t columns_of(int fd) {
  struct winsize size {};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Blocks SIGPIPE in this thread while the object lives. Threads that this thread starts meanwhile inherit the block. A
// write to a closed pipe would otherwise end the process. With SIGPIPE blocked, the write only fails.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~SigpipeBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t before_;
};

// Owns a copy of a file descriptor for the writer's thread, because the thread might hang inside write(2) for a long
// time. The owner of the original descriptor might close it meanwhile, and another file might get its number. Without
// the copy, the thread would then write into that file. The copy is closed only when no write is running, and otherwise
// stays open.
class OutputCopy {
 public:
  explicit OutputCopy(int fd) : original_(fd), copy_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {}
  OutputCopy(const OutputCopy&) = delete;
  OutputCopy& operator=(const OutputCopy&) = delete;
  // Returns the copy. If there is none, because the original was not open or because no descriptors were free, returns
  // the original.
  int fd() const { return copy_ >= 0 ? copy_ : original_; }
  void close_if(bool unused) {
    if (unused && copy_ >= 0) ::close(std::exchange(copy_, -1));
  }

 private:
  int original_, copy_;
};

ConsoleWriter make_writer(int fd) {
  const SigpipeBlocked blocked;
  return {fd, kPatience};
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) c = '?';
  }
  if (!result.ends_with('\n')) result += '\n';
  return result;
}

ProgressOptions checked(ProgressOptions options) {
  ZS_CHECK(options.total_steps > 0, "total_steps must be positive, got ", options.total_steps);
  ZS_CHECK(options.start_step >= 0, "start_step must not be negative, got ", options.start_step);
  ZS_CHECK(options.every > 0, "every must be positive, got ", options.every);
  if (!options.terminal) options.terminal = can_draw(options.fd);
  if (!options.now) options.now = steady_seconds;
  return options;
}

}  // namespace

class ProgressLine::Impl {
 public:
  explicit Impl(ProgressOptions options)
      : options_(checked(std::move(options))), output_(options_.fd), writer_(make_writer(output_.fd())) {
    times_.push_back({options_.start_step, options_.now()});
  }

  void update(int64_t step, const MetricValues& values) {
    if (finished_) return;
    const double now = options_.now();
    times_.push_back({step, now});
    if (times_.size() > kTimedUpdates) times_.pop_front();
    state_ = {step, options_.total_steps, values, seconds_left()};
    shown_ = false;
    if (*options_.terminal) {
      // No bar is queued while the terminal has not taken the previous one. Otherwise bars would queue up, and the
      // terminal would later show all of them, one after another.
      if (drawn_ && (now - drawn_at_ < kRedrawSeconds || !writer_.idle())) return;
      draw(now);
    } else if (!drawn_ || step >= options_.total_steps || step / options_.every > drawn_step_ / options_.every) {
      print_line();
    }
  }

  void message(std::string_view text) {
    if (finished_) return;
    const bool bar = *options_.terminal && drawn_;
    writer_.write((bar ? "\r\x1b[K" : "") + printable(text));
    if (bar) draw(drawn_at_);
  }

  void finish() {
    if (std::exchange(finished_, true)) return;
    if (!shown_) *options_.terminal ? draw(drawn_at_) : print_line();
    if (*options_.terminal && drawn_) writer_.write("\n");
    writer_.drain(kPatience);
    output_.close_if(writer_.idle());
  }

 private:
  struct Time {
    int64_t step;
    double seconds;
  };

  double seconds_left() const {
    const int64_t steps = times_.back().step - times_.front().step;
    const double seconds = times_.back().seconds - times_.front().seconds;
    if (steps <= 0 || seconds <= 0) return -1;
    return seconds / double(steps) * double(std::max<int64_t>(options_.total_steps - times_.back().step, 0));
  }

  // The cursor is left at the beginning of the line, so that other output overwrites the bar instead of following it.
  void draw(double now) {
    writer_.write(concat("\r", progress_bar(state_, columns_of(output_.fd()) - 1), "\x1b[K\r"));
    drawn_ = shown_ = true;
    drawn_at_ = now;
  }

  void print_line() {
    writer_.write(progress_text(state_) + "\n");
    drawn_ = shown_ = true;
    drawn_step_ = state_.step;
  }

  const ProgressOptions options_;
  OutputCopy output_;
  ConsoleWriter writer_;
  std::deque<Time> times_;
  ProgressState state_;
  bool drawn_ = false;  // whether anything was drawn
  bool shown_ = true;   // whether the last state was shown
  double drawn_at_ = 0;
  int64_t drawn_step_ = 0;
  bool finished_ = false;
};

ProgressLine::ProgressLine(ProgressOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

ProgressLine::~ProgressLine() {
  try {
    impl_->finish();
  } catch (const std::exception&) {  // there is no memory for a line of text
  }
}

void ProgressLine::update(int64_t step, const MetricValues& values) {
  impl_->update(step, values);
}

void ProgressLine::message(std::string_view text) {
  impl_->message(text);
}

void ProgressLine::finish() {
  impl_->finish();
}

}  // namespace zeroshard
