#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace zeroshard {

// The reason why the communicators of a thread failed. If one communicator fails, all fail, so that no communicator
// waits for a rank that is gone. Thread-safe, because a thread that watches the device might detect the failure first.
class SharedFailure {
 public:
  bool happened() const { return happened_.load(std::memory_order_acquire); }
  // Returns the reason, or "" before a failure.
  std::string text() const { return happened() ? text_ : std::string(); }

  // Sets the reason and calls every listener once. Until all listeners were called, leave() blocks. If a reason is
  // already set or `text` is empty, does nothing.
  void set(const std::string& text) noexcept {
    if (happened() || text.empty()) return;  // without the lock, because `tell` of a listener can call set(), too
    const std::scoped_lock lock(mutex_);
    if (happened()) return;
    text_ = text;
    happened_.store(true, std::memory_order_release);
    for (const auto& [who, tell] : std::exchange(listeners_, {})) tell(text_);
  }
  // Registers a listener. The thread that calls set() calls `tell`, which must not throw. A listener that is registered
  // after the failure is never called.
  void listen(const void* who, std::function<void(const std::string&)> tell) {
    const std::scoped_lock lock(mutex_);
    listeners_.emplace_back(who, std::move(tell));
  }
  void leave(const void* who) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(listeners_, [who](const auto& listener) { return listener.first == who; });
  }

 private:
  std::mutex mutex_;  // protects the text and the listeners
  std::atomic<bool> happened_ = false;
  std::string text_;  // does not change after the failure
  std::vector<std::pair<const void*, std::function<void(const std::string&)>>> listeners_;
};

}  // namespace zeroshard
