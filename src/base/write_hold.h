#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace zeroshard {

// Keeps writers from what another thread still reads. Whoever is about to write waits until nobody reads. Readers
// begin only where no writer is at work: this is no lock.
class WriteHold {
 public:
  struct End {
    void operator()(WriteHold* hold) const noexcept { hold->end(); }
  };
  // As long as it lives, writers wait. It may end on any thread; the hold outlives it.
  using Reading = std::unique_ptr<WriteHold, End>;
  // Called by a writer that waits, some ten times a second. An exception of it ends the wait.
  using WhileWaiting = std::function<void()>;

  explicit WriteHold(WhileWaiting while_waiting = {}) : while_waiting_(std::move(while_waiting)) {}
  WriteHold(const WriteHold&) = delete;
  WriteHold& operator=(const WriteHold&) = delete;

  Reading read();
  // Before writing: returns when nobody reads. Throws what WhileWaiting throws.
  void await_readers();

 private:
  void end() noexcept;

  WhileWaiting while_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int readers_ = 0;
};

}  // namespace zeroshard
