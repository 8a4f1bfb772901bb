#include "base/process_name.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <random>

#include "base/format.h"

namespace zeroshard {
namespace {

// Without dots, so that the parts of a name can be told apart.
std::string host_name() {
  std::array<char, 256> buffer{};
  ::gethostname(buffer.data(), buffer.size() - 1);
  std::string name(buffer.data());
  for (char& c : name)
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) c = '-';
  return name;
}

// A forked child has its parent's, and another number.
const std::string& random_part() {
  static const std::string kPart = [] {
    constexpr char kDigits[] = "0123456789abcdef";
    std::random_device random;
    std::string text;
    for (int i = 0; i < 16; ++i) text += kDigits[random() & 15U];
    return text;
  }();
  return kPart;
}

}  // namespace

std::string process_name() {
  return concat(host_name(), ".", ::getpid(), "-", random_part());
}

bool has_ended(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || name.substr(0, dot) != host_name()) return false;
  const std::string_view process = name.substr(dot + 1), digits = process.substr(0, process.find('-'));
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (error != std::errc() || end != digits.data() + digits.size() || pid <= 0) return false;
  if (pid == ::getpid()) return name != process_name();
  return !process_exists(pid);
}

bool process_exists(pid_t pid) {
  return ::kill(pid, 0) == 0 || errno != ESRCH;
}

}  // namespace zeroshard
