#include "base/boot_id.h"

#include <fstream>

namespace zeroshard {

std::string boot_id() {
  char id[64] = "";  // a stream that reads into a string does not say when there is no memory for it
  std::ifstream("/proc/sys/kernel/random/boot_id").getline(id, sizeof id);
  return id;
}

}  // namespace zeroshard
