#include "base/process_name.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <random>

#include "base/boot_id.h"
#include "base/format.h"
#include "base/host_name.h"

namespace zeroshard {
namespace {

// Returns the host's name with '-' in place of everything but letters and digits. The first dot of a process name then
// ends HOST.
std::string host_part() {
  std::string name = host_name();
  for (char& c : name)
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) c = '-';
  return name;
}

constexpr size_t kRandomDigits = 16;

// Returns the RANDOM part of the name. A forked child inherits its parent's value, but has another process number.
const std::string& random_part() {
  static const std::string kPart = [] {
    constexpr char kDigits[] = "0123456789abcdef";
    std::random_device random;
    std::string text;
    for (size_t i = 0; i < kRandomDigits; ++i) text += kDigits[random() & 15U];
    return text;
  }();
  return kPart;
}

// Returns PLACE, which is eight hexadecimal digits of a hash. The hash is that of the boot id, which also identifies
// the host, and of the namespace of process numbers.
std::string place() {
  std::string boot = boot_id();
  struct stat numbers {};
  if (::stat("/proc/self/ns/pid", &numbers) == 0) boot += concat(" ", numbers.st_ino);
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : boot) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(hash >> shift) & 15U];
  return text;
}

// The parts PID and PLACE of a name from this host. PLACE is empty in names that earlier versions made.
struct Parts {
  std::string_view pid, place;
};

std::optional<Parts> parts_of(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || name.substr(0, dot) != host_part()) return std::nullopt;
  const std::string_view process = name.substr(dot + 1);
  const size_t first = process.find('-'), last = process.rfind('-');
  Parts parts{process.substr(0, first), {}};
  if (first < last) parts.place = process.substr(first + 1, last - first - 1);
  return parts;
}

}  // namespace

std::string process_name() {
  return concat(host_part(), ".", ::getpid(), "-", place(), "-", random_part());
}

bool ends_as_process_name(std::string_view text) {
  if (text.size() <= kRandomDigits) return false;
  const std::string_view end = text.substr(text.size() - kRandomDigits - 1);
  return end.front() == '-' && end.find_first_not_of("0123456789abcdef", 1) == end.npos;
}

bool is_of_this_host(std::string_view name) {
  return parts_of(name).has_value();
}

bool is_of_another_place(std::string_view name) {
  const auto parts = parts_of(name);
  return parts && !parts->place.empty() && parts->place != place();
}

bool has_ended(std::string_view name) {
  const auto parts = parts_of(name);
  if (!parts || is_of_another_place(name)) return false;
  const std::string_view digits = parts->pid;
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
