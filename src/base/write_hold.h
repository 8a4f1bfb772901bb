#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace zeroshard {

// Makes writers wait while other threads read. It is not a lock, because nothing makes readers wait. The program must
// make sure that a reader begins only while no writer is active.
class WriteHold {
 public:
  struct End {
    void operator()(WriteHold* hold) const noexcept { hold->end(); }
  };
  // While a Reading lives, writers wait. Any thread may destroy a Reading. The WriteHold must outlive its Readings.
  using Reading = std::unique_ptr<WriteHold, End>;
  // A function that a waiting writer calls about ten times a second. An exception from the function ends the wait.
  using WhileWaiting = std::function<void()>;

  explicit WriteHold(WhileWaiting while_waiting = {}) : while_waiting_(std::move(while_waiting)) {}
  WriteHold(const WriteHold&) = delete;
  WriteHold& operator=(const WriteHold&) = delete;

  Reading read();  // must be called before the caller reads
  // Must be called by a writer before it writes. Returns when nobody reads. Throws the exceptions of WhileWaiting.
  void await_readers();

 private:
  void end() noexcept;

  WhileWaiting while_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int readers_ = 0;
};

}  // namespace zeroshard
