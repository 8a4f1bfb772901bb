#include "device/missing_memory.h"

#include <c10/util/Exception.h>

#include "base/out_of_memory.h"

namespace zeroshard {

void tell_missing_memory(const std::function<void()>& allocate, const std::function<std::string()>& what) {
  try {
    allocate();
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(error.what() + what());
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("there is no memory" + what());
  } catch (c10::OutOfMemoryError& error) {  // a device has no memory; scripts catch this type, so the type stays
    error.add_context(what());
    throw;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("DefaultCPUAllocator") == text.npos) throw;
    throw OutOfMemory("there is no memory" + what());
  }
}

}  // namespace zeroshard
