#include "file/direct_buffer.h"

#include <sys/mman.h>

#include <new>

#include "base/align.h"

namespace zeroshard {

DirectBuffer allocate_direct(int64_t bytes) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const int64_t alignment = bytes < kHugePage ? kDirectAlignment : kHugePage;
  const auto size = size_t(align_up(bytes > 0 ? bytes : 1, alignment));
  DirectBuffer buffer(static_cast<std::byte*>(std::aligned_alloc(size_t(alignment), size)));
  if (!buffer) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(buffer.get(), size, MADV_HUGEPAGE);  // the system can refuse this advice
  return buffer;
}

}  // namespace zeroshard
