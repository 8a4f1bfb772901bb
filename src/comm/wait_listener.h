#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

// Receives reports of long waits, for a supervisor that detects hung ranks. The waiting thread calls waiting() and
// done_waiting().
class WaitListener {
 public:
  virtual ~WaitListener() = default;
  // Says that a long wait has begun. `where` names the collective, its tag and the awaited rank.
  virtual void waiting(std::string_view where) noexcept = 0;
  virtual void done_waiting() noexcept = 0;
  // Returns a failure on another host that no rank of this host can see, or "" if none is known. Any thread may call
  // it.
  virtual std::string failure_elsewhere() { return {}; }
};

// One wait. The first call of lasts() tells the listener that the wait is long. The wait ends with the object.
class LongWait {
 public:
  explicit LongWait(const std::shared_ptr<WaitListener>& listener) : listener_(listener.get()) {}
  ~LongWait() {
    if (told_) listener_->done_waiting();
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  // Must be called whenever the wait has lasted for some time. `where()` returns the text for the listener.
  template <typename Where>
  void lasts(const Where& where) {
    if (told_ || listener_ == nullptr) return;
    told_ = true;
    listener_->waiting(where());
  }

 private:
  WaitListener* listener_;
  bool told_ = false;
};

}  // namespace zeroshard
