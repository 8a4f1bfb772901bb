#include "device/pinned_memory.h"

#include <ATen/Context.h>
#include <sys/mman.h>

#include <mutex>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "device/pinning.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

std::shared_ptr<std::byte> map_memory(int64_t bytes) {
  void* const memory = ::mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw StateError(concat("the host has no memory for ", bytes, " bytes beside the device"));
  ::madvise(memory, size_t(bytes), MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), [bytes](std::byte* mapped) { ::munmap(mapped, size_t(bytes)); }};
}

void warn_once(int64_t bytes, const std::string& reason) {
  static std::once_flag once;
  std::call_once(once, [&] {
    log(LogLevel::kWarning, concat("copies between the host and the device will take longer: ", bytes,
                                   " bytes of the host's memory could not be pinned (", reason,
                                   "). `ulimit -l` shows how much this process may lock"));
  });
}

// Allocates with torch's allocator of pinned memory. Must not be called for CUDA, where that allocator rounds the size
// up to a power of two. For other devices, that allocator allocates exactly `bytes`.
std::shared_ptr<std::byte> allocate_pinned(int64_t bytes, c10::Device device) {
  auto owner = std::make_shared<c10::DataPtr>(
      at::globalContext().getPinnedMemoryAllocator(device.type())->allocate(size_t(bytes)));
  auto* const memory = static_cast<std::byte*>(owner->get());
  return {std::move(owner), memory};
}

}  // namespace

std::shared_ptr<std::byte> pinned_memory(int64_t bytes, c10::Device device) {
  if (!device.is_cuda()) {
    try {
      return allocate_pinned(bytes, device);
    } catch (const c10::Error& error) {
      warn_once(bytes, error.what_without_backtrace());
      return map_memory(bytes);
    }
  }
  std::shared_ptr<std::byte> memory = map_memory(bytes);
  const std::string problem = pin_for_cuda(memory.get(), bytes);
  if (!problem.empty()) {
    warn_once(bytes, problem);
    return memory;
  }
  std::byte* const start = memory.get();
  return {start, [memory = std::move(memory)](std::byte* pinned) { unpin_for_cuda(pinned); }};
}

}  // namespace zeroshard
