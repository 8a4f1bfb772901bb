#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace zeroshard {

// Why the communicators that one thread uses broke. When one breaks all do, so that none waits for a rank that is gone.
// Thread-safe: a thread that watches the device may find out first.
class SharedFailure {
 public:
  bool happened() const { return happened_.load(std::memory_order_acquire); }
  // "" before it happened.
  std::string text() const { return happened() ? text_ : std::string(); }

  // The first text stays. All who asked for it are told, once, before any of them can leave.
  void set(const std::string& text) noexcept {
    if (happened() || text.empty()) return;  // also where a listener fails in turn
    const std::scoped_lock lock(mutex_);
    if (happened()) return;
    text_ = text;
    happened_.store(true, std::memory_order_release);
    for (const auto& [who, tell] : std::exchange(listeners_, {})) tell(text_);
  }
  // `tell` does not throw, and may be called by any thread.
  void listen(const void* who, std::function<void(const std::string&)> tell) {
    const std::scoped_lock lock(mutex_);
    listeners_.emplace_back(who, std::move(tell));
  }
  void leave(const void* who) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(listeners_, [who](const auto& listener) { return listener.first == who; });
  }

 private:
  std::mutex mutex_;  // of the text and the listeners
  std::atomic<bool> happened_ = false;
  std::string text_;  // does not change once it has happened
  std::vector<std::pair<const void*, std::function<void(const std::string&)>>> listeners_;
};

}  // namespace zeroshard
