#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

// Writes to a terminal, pipe or file from a thread of its own, so that a stopped reader never stops the caller. Only
// one thread may use a writer. A writer must be created after the last fork.
//
// Note [Slow consoles]: while the reader makes progress, however slowly, no line is lost. full() asks the caller to
// stop reading from the ranks. The ranks then wait in their own writes, as they would without a launcher. But a reader
// that takes nothing for `patience` (a terminal halted with Ctrl-S, a pager left open) must not halt a training run.
// After that time, the writer drops and counts lines until the reader reads again.
class ConsoleWriter {
 public:
  using Seconds = std::chrono::duration<double>;

  ConsoleWriter(int fd, Seconds patience);
  ~ConsoleWriter();  // does not wait; loses queued lines unless drain() was called before
  ConsoleWriter(const ConsoleWriter&) = delete;

  void write(std::string_view lines);
  bool full() const;
  bool idle() const;  // whether everything is written
  // Waits until everything is written, or until the reader has taken nothing for `patience`.
  void drain(Seconds patience);

 private:
  struct State;
  // The thread shares the state, because it might hang inside write(2) and outlive this object.
  std::shared_ptr<State> state_;
};

}  // namespace zeroshard
