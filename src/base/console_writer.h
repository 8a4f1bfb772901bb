#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

// Writes to a terminal, pipe or file from a thread of its own, so that a reader that stops reading never makes the
// caller wait in write(). Only one thread may use a writer. A writer must be created after the last fork.
//
// Note [Slow consoles]: as long as the reader takes something from time to time, however slowly, no line is lost.
// full() returns true if 4 MiB or more are queued, and the launcher then stops reading from the ranks. The ranks wait
// in their own writes, as they would without a launcher. But a reader that takes nothing for longer than `patience` (a
// terminal halted with Ctrl-S, a pager left open) must not halt a training run. From then on full() returns false, and
// write() drops and counts lines while the queue is full. Once the reader reads again, the next write() first queues a
// line that tells the count. Lines are dropped without being counted if the system cannot write them, for example
// because the pipe is closed or the disk is full.
class ConsoleWriter {
 public:
  using Seconds = std::chrono::duration<double>;

  ConsoleWriter(int fd, Seconds patience);
  ~ConsoleWriter();  // does not wait; lines that are still queued can be lost
  ConsoleWriter(const ConsoleWriter&) = delete;

  void write(std::string_view lines);  // queues `lines`, or drops them as Note [Slow consoles] says
  bool full() const;                   // whether the caller should wait before it writes more
  bool idle() const;                   // whether everything is written
  // Waits until everything is written, or until the reader has taken nothing for `patience`. This value replaces the
  // constructor's `patience` in this call only.
  void drain(Seconds patience);

 private:
  struct State;
  // The thread shares the state, because the thread might hang inside write(2) and outlive this object.
  std::shared_ptr<State> state_;
};

}  // namespace zeroshard
