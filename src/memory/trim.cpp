#include "memory/trim.h"

#if defined(__linux__)
#include <malloc.h>
#endif

namespace zeroshard {

void return_free_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

}  // namespace zeroshard
