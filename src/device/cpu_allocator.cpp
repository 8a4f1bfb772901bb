#include "device/cpu_allocator.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "memory/block_cache.h"

namespace zeroshard {
namespace {

constexpr uintptr_t kAlignment = 64;           // that of torch's own allocator
constexpr size_t kOwnBlock = size_t{1} << 20;  // memory from this size on comes from the BlockCache

// The header of a tensor's memory. It lies directly in front of this memory.
struct Header {
  void* start;   // what malloc() returned, or the start of the BlockCache's block
  size_t block;  // the block's bytes; 0: the memory is from malloc()
};
// A Header must fit in front of the address that is aligned to kAlignment. At least alignof(std::max_align_t) bytes are
// free there, because malloc() aligns memory to that.
static_assert(sizeof(Header) <= alignof(std::max_align_t));

Header& header_of(void* memory) {
  return static_cast<Header*>(memory)[-1];
}

// Returns the cache of blocks. The cache is never destroyed, because torch uses it until the process ends.
BlockCache& block_cache() {
  static auto* const cache = new BlockCache;
  return *cache;
}

void release(void* memory) {
  if (memory == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(memory);
  const Header header = header_of(memory);
  if (header.block == 0) {
    std::free(header.start);
  } else {
    block_cache().give_back({header.start, header.block});
  }
}

Header take_from_system(size_t bytes) {
  if (bytes >= kOwnBlock) {
    const BlockCache::Block block = block_cache().take(bytes);
    if (block.start != nullptr) return {block.start, block.bytes};
  }
  void* start = std::malloc(bytes);
  if (start == nullptr) {
    block_cache().trim();
    start = std::malloc(bytes);
  }
  return {start, 0};
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
    const bool fits = bytes <= size_t(std::numeric_limits<ptrdiff_t>::max()) / 2;
    const Header header = fits ? take_from_system(bytes + kAlignment) : Header{};
    if (header.start == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      // The text is that of torch's own allocator, because programs look for it to suggest a smaller batch.
      TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes, " bytes.");
    }
    // At least 16 bytes, which is malloc's alignment, lie in front of the aligned address.
    const auto aligned = (reinterpret_cast<uintptr_t>(header.start) + kAlignment) & ~(kAlignment - 1);
    void* const memory = reinterpret_cast<void*>(aligned);
    header_of(memory) = header;
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return memory;
  }
};

}  // namespace

#ifdef __GLIBC__
namespace {

// Returns whether the loaded object `name`, at `base`, has a malloc() of its own.
bool has_malloc(const char* name, const void* base) {
  void* const object = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (object == nullptr) return false;  // the kernel's own object (vDSO)
  Dl_info info{};
  const void* const found = ::dlsym(object, "malloc");
  const bool own = found != nullptr && ::dladdr(found, &info) != 0 && info.dli_fbase == base;
  ::dlclose(object);
  return own;
}

// Returns whether malloc() is that of glibc, or false if this cannot be found out. Another malloc() has its own size
// classes and does not need this allocator. The address of malloc() alone does not decide this, because in a program
// that is not position-independent (Debian's Python) it is the address of a jump within the program.
bool malloc_is_glibcs() {
  Dl_info found{}, libc{};
  const ElfW(Sym)* symbol = nullptr;
  const void* const address = ::dlsym(RTLD_DEFAULT, "malloc");
  if (address == nullptr || ::dladdr(reinterpret_cast<const void*>(&::gnu_get_libc_version), &libc) == 0 ||
      ::dladdr1(address, &found, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT) == 0)
    return false;
  if (found.dli_fbase == libc.dli_fbase) return true;
  if (symbol == nullptr || symbol->st_shndx != SHN_UNDEF) return false;
  // The jump leads to the first loaded library that has a malloc().
  link_map* program = nullptr;
  if (::dlinfo(::dlopen(nullptr, RTLD_LAZY), RTLD_DI_LINKMAP, &program) != 0) return false;
  for (const link_map* object = program->l_next; object != nullptr; object = object->l_next) {
    const void* const base = reinterpret_cast<const void*>(object->l_addr);
    if (base == libc.dli_fbase) return true;
    if (has_malloc(object->l_name, base)) return false;
  }
  return false;
}

}  // namespace
#endif

void use_compact_cpu_allocator() {
#ifdef __GLIBC__
  static std::once_flag once;
  std::call_once(once, [] {
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator() || !malloc_is_glibcs()) return;
    if (c10::utils::check_env("THP_MEM_ALLOC_ENABLE") == true) return;
    // A forked child of a process with many threads, such as a data loader, frees memory that it has inherited. If
    // another thread held the lock of the cache during the fork, the lock would stay locked in the child. So the
    // forking thread takes the lock.
    ::pthread_atfork([] { block_cache().lock(); }, [] { block_cache().unlock(); }, [] { block_cache().unlock(); });
    auto* const allocator = new CompactAllocator;  // never destroyed, because torch uses it until the process ends
    std::atomic_thread_fence(std::memory_order_release);
    c10::SetCPUAllocator(allocator);
  });
#endif
}

void end_cpu_memory_step() noexcept {
  block_cache().end_step();
}

int64_t kept_cpu_memory() noexcept {
  return int64_t(block_cache().kept_bytes());
}

void trim_cpu_memory() noexcept {
  block_cache().trim();
}

}  // namespace zeroshard
