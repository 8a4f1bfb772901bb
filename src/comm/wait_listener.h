#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace zeroshard {

// Is told of waits that last, for a supervisor that looks for hung ranks. Called by the waiting thread.
class WaitListener {
 public:
  virtual ~WaitListener() = default;
  // `where` names the collective, its tag and the rank that is waited for.
  virtual void waiting(std::string_view where) noexcept = 0;
  virtual void done_waiting() noexcept = 0;
  // What has failed on another host, where no rank of this one can see it; "": nothing is known. Called by any thread.
  virtual std::string failure_elsewhere() { return {}; }
};

// One wait. The listener learns of it at the first call of lasts(); it ends with the object.
class LongWait {
 public:
  explicit LongWait(const std::shared_ptr<WaitListener>& listener) : listener_(listener.get()) {}
  ~LongWait() {
    if (told_) listener_->done_waiting();
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  // `where()` makes the text.
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
