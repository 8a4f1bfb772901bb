#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace zeroshard {

// Makes writers wait while another thread reads. A writer waits until nobody reads. Readers may only begin while no
// writer is active, so this is not a lock.
class WriteHold {
 public:
  struct End {
    void operator()(WriteHold* hold) const noexcept { hold->end(); }
  };
  // While it lives, writers wait. It may be destroyed on any thread. The hold must outlive it.
  using Reading = std::unique_ptr<WriteHold, End>;
  // A waiting writer calls it about ten times a second. An exception from it ends the wait.
  using WhileWaiting = std::function<void()>;

  explicit WriteHold(WhileWaiting while_waiting = {}) : while_waiting_(std::move(while_waiting)) {}
  WriteHold(const WriteHold&) = delete;
  WriteHold& operator=(const WriteHold&) = delete;

  Reading read();
  // Call it before writing: it returns when nobody reads. Throws what WhileWaiting throws.
  void await_readers();

 private:
  void end() noexcept;

  WhileWaiting while_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int readers_ = 0;
};

}  // namespace zeroshard
