#include "device/kept_memory.h"

#include <mutex>
#include <utility>
#include <vector>

namespace zeroshard {

void keep_for_ever(at::Tensor memory) noexcept {
  static auto& mutex = *new std::mutex();  // never destroyed
  static auto& kept = *new std::vector<at::Tensor>();
  const std::scoped_lock lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace zeroshard
