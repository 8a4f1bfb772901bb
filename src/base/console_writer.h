#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

// Writes to a terminal, pipe or file from its own thread, so that a stopped reader never stops the caller. Used by one
// thread. Create it after the last fork.
//
// Note [Slow consoles]: while the reader makes progress, however slowly, nothing is lost. full() asks the caller to
// stop reading from the ranks. The ranks then wait in their own writes, as they would without a launcher. A reader that
// takes nothing for `patience` (a terminal halted with Ctrl-S, a pager left open) must not halt a training run. After
// that time, lines are dropped and counted until the reader reads again.
class ConsoleWriter {
 public:
  using Seconds = std::chrono::duration<double>;

  ConsoleWriter(int fd, Seconds patience);
  ~ConsoleWriter();  // does not wait; queued lines are lost unless drain() was called
  ConsoleWriter(const ConsoleWriter&) = delete;

  void write(std::string_view lines);
  bool full() const;
  bool idle() const;  // everything is written
  // Waits until everything is written, or until the reader has taken nothing for `patience`.
  void drain(Seconds patience);

 private:
  struct State;
  // Shared with the thread, which may hang inside write(2) and outlive this object.
  std::shared_ptr<State> state_;
};

}  // namespace zeroshard
