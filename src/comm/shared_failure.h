#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace zeroshard {

// Why the communicators that one thread uses broke. When one breaks all do, so that none waits for a rank that is gone.
class SharedFailure {
 public:
  bool happened() const { return !text_.empty(); }
  // "" before it happened.
  const std::string& text() const { return text_; }

  // The first text stays. All who asked for it are told, once.
  void set(const std::string& text) noexcept {
    if (happened() || text.empty()) return;
    text_ = text;
    for (const auto& [who, tell] : std::exchange(listeners_, {})) tell(text_);
  }
  // `tell` does not throw.
  void listen(const void* who, std::function<void(const std::string&)> tell) {
    listeners_.emplace_back(who, std::move(tell));
  }
  void leave(const void* who) {
    std::erase_if(listeners_, [who](const auto& listener) { return listener.first == who; });
  }

 private:
  std::string text_;
  std::vector<std::pair<const void*, std::function<void(const std::string&)>>> listeners_;
};

}  // namespace zeroshard
