#include "base/umask.h"

#include <cstdlib>
#include <fstream>

#include "base/format.h"

namespace zeroshard {

std::string advice_on_umask() {
  constexpr long kOwn = 0700;
  // The umask is not read by umask(2), because umask(2) would also change it, for all threads.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Umask:\t")) continue;
    const std::string umask = line.substr(line.find('\t') + 1);
    if ((std::strtol(umask.c_str(), nullptr, 8) & kOwn) == 0) return "";
    return concat(". The umask is ", umask,
                  ", which takes this user's own permissions from what is created: set it to 077 or 022");
  }
  return "";
}

}  // namespace zeroshard
