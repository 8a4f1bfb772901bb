#include "base/host_name.h"

#include <unistd.h>

#include <array>

namespace zeroshard {

std::string host_name() {
  std::array<char, 256> buffer{};
  ::gethostname(buffer.data(), buffer.size() - 1);
  return buffer.data();
}

}  // namespace zeroshard
