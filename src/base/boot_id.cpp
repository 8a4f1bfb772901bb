#include "base/boot_id.h"

#include <fstream>

namespace zeroshard {

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace zeroshard
