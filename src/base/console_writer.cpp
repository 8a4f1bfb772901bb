#include "base/console_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/format.h"

namespace zeroshard {

namespace {
using Clock = std::chrono::steady_clock;
constexpr size_t kCapacityBytes = size_t{4} << 20;
constexpr size_t kPieceBytes = size_t{64} << 10;  // most bytes of one write(2), because progress is noted after each
}  // namespace

struct ConsoleWriter::State {
  State(int output, Seconds longest_wait) : fd(output), patience(longest_wait) {}

  bool stuck_for(Seconds time) const { return queued_bytes > 0 && Clock::now() - last_progress > time; }
  bool stuck() const { return stuck_for(patience); }

  // Writes `text` piece by piece. If a write fails for good (closed pipe, full disk), drops the rest of `text`.
  void write_out(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kPieceBytes));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EAGAIN) {  // another process made the terminal non-blocking
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      const size_t done = written < 0 ? text.size() : static_cast<size_t>(written);
      text.remove_prefix(done);
      const std::scoped_lock lock(mutex);
      queued_bytes -= done;
      last_progress = Clock::now();
      changed.notify_all();
    }
  }

  void work() {
    for (;;) {
      std::string text;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return closed || !pending.empty(); });
        if (closed) return;
        text.swap(pending);
      }
      write_out(text);
    }
  }

  const int fd;
  const Seconds patience;
  std::mutex mutex;
  std::condition_variable changed;
  std::string pending;
  size_t queued_bytes = 0;  // bytes of `pending` and of the text that the thread is writing
  size_t dropped_lines = 0;
  Clock::time_point last_progress = Clock::now();
  bool closed = false;
};

ConsoleWriter::ConsoleWriter(int fd, Seconds patience) : state_(std::make_shared<State>(fd, patience)) {
  std::thread([state = state_] { state->work(); }).detach();
}

ConsoleWriter::~ConsoleWriter() {
  const std::scoped_lock lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

void ConsoleWriter::write(std::string_view lines) {
  if (lines.empty()) return;
  const std::scoped_lock lock(state_->mutex);
  State& state = *state_;
  if (state.stuck() && state.queued_bytes >= kCapacityBytes) {
    state.dropped_lines += static_cast<size_t>(std::max<ptrdiff_t>(1, std::count(lines.begin(), lines.end(), '\n')));
    return;
  }
  if (state.queued_bytes == 0) state.last_progress = Clock::now();
  if (state.dropped_lines > 0) {
    const std::string notice = concat("[zeroshard] ", state.dropped_lines, " lines dropped: nobody read them for ",
                                      state.patience.count(), " s\n");
    state.pending += notice;
    state.queued_bytes += notice.size();
    state.dropped_lines = 0;
  }
  state.pending += lines;
  state.queued_bytes += lines.size();
  state.changed.notify_all();
}

bool ConsoleWriter::full() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queued_bytes >= kCapacityBytes && !state_->stuck();
}

bool ConsoleWriter::idle() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queued_bytes == 0;
}

void ConsoleWriter::drain(Seconds patience) {
  std::unique_lock lock(state_->mutex);
  while (state_->queued_bytes > 0 && !state_->stuck_for(patience)) {
    state_->changed.wait_for(lock, std::chrono::milliseconds(50));
  }
}

}  // namespace zeroshard
