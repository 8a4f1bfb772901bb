#include "device/cpu_allocator.h"

#include <dlfcn.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>

namespace zeroshard {
namespace {

constexpr uintptr_t kAlignment = 64;  // as torch's own allocator

// The start of what malloc gave, in front of the aligned memory.
void*& start_of(void* memory) {
  return static_cast<void**>(memory)[-1];
}

void release(void* memory) {
  if (memory == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(memory);
  std::free(start_of(memory));
}

class CompactAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = take(bytes);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void* take(size_t bytes) {
    if (bytes == 0) return nullptr;
    const bool fits = bytes <= std::numeric_limits<size_t>::max() - kAlignment;
    void* const start = fits ? std::malloc(bytes + kAlignment) : nullptr;
    if (start == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      // The words of torch's own allocator, by which programs tell that a smaller batch may help.
      TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes, " bytes.");
    }
    // At least the 16 bytes that malloc aligns to lie in front.
    const auto aligned = (reinterpret_cast<uintptr_t>(start) + kAlignment) & ~(kAlignment - 1);
    void* const memory = reinterpret_cast<void*>(aligned);
    start_of(memory) = start;
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return memory;
  }
};

}  // namespace

#ifdef __GLIBC__
namespace {

// Another one in its place has classes of sizes of its own, and no need of this.
bool malloc_is_glibcs() {
  Dl_info own{}, libc{};
  const void* const found = ::dlsym(RTLD_DEFAULT, "malloc");
  return found != nullptr && ::dladdr(found, &own) != 0 &&
         ::dladdr(reinterpret_cast<const void*>(&::gnu_get_libc_version), &libc) != 0 &&
         own.dli_fbase == libc.dli_fbase;
}

}  // namespace
#endif

void use_compact_cpu_allocator() {
#ifdef __GLIBC__
  static std::once_flag once;
  std::call_once(once, [] {
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator() || !malloc_is_glibcs()) return;
    if (c10::utils::check_env("THP_MEM_ALLOC_ENABLE") == true) return;
    auto* const allocator = new CompactAllocator;  // torch's from here on, until the process ends
    std::atomic_thread_fence(std::memory_order_release);
    c10::SetCPUAllocator(allocator);
  });
#endif
}

}  // namespace zeroshard
