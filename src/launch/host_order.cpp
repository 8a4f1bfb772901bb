#include "launch/host_order.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>

#include "base/check.h"
#include "base/shown_text.h"
#include "zeroshard/version.h"

namespace zeroshard {
namespace {

constexpr std::string_view kOrder = "zeroshard-order 1 ";
constexpr size_t kMostBytes = size_t{16} << 20, kMostValues = 100'000, kHeaderBytes = 40;
constexpr double kOrderS = 60;
constexpr const char* kNoOrder =
    "standard input has no order of another host's zeroshard: --from-stdin is what `zeroshard run --hostfile` starts "
    "on each host";

[[noreturn]] void refuse() {
  throw ValueError(kNoOrder);
}

std::optional<size_t> number(std::string_view text, size_t most) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > most) return {};
  return value;
}

size_t number_or_refuse(std::string_view text, size_t most) {
  const std::optional<size_t> value = number(text, most);
  return value ? *value : (refuse(), 0);
}

void append(std::string& text, std::string_view value) {
  text += concat(value.size(), ":", value, ",");
}

std::vector<std::string> values_of(std::string_view text) {
  std::vector<std::string> values;
  while (!text.empty()) {
    const size_t colon = text.substr(0, kHeaderBytes).find(':');
    if (colon == text.npos || values.size() == kMostValues) refuse();
    const size_t size = number_or_refuse(text.substr(0, colon), kMostBytes);
    text.remove_prefix(colon + 1);
    if (text.size() <= size || text[size] != ',') refuse();
    values.emplace_back(text.substr(0, size));
    if (values.back().find('\0') != std::string::npos) refuse();  // neither argv nor environ can contain a zero byte
    text.remove_prefix(size + 1);
  }
  return values;
}

// Reads `size` bytes. Throws ValueError if `fd` has fewer bytes, or if they have not come by `end`.
void read_exactly(int fd, char* to, size_t size, std::chrono::steady_clock::time_point end) {
  while (size > 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd waits{fd, POLLIN, 0};
    if (left.count() <= 0) refuse();
    if (::poll(&waits, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t got = ::read(fd, to, size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) refuse();
    to += got;
    size -= static_cast<size_t>(got);
  }
}

HostOrder order_of(std::string_view values_text) {
  std::vector<std::string> values = values_of(values_text);
  if (values.empty()) refuse();
  ZS_CHECK(values[0] == kVersion, "this host has zeroshard ", kVersion, ", and the one that starts the job has ",
           shown_text(values[0]), ": install the same version on all hosts");
  constexpr size_t kBefore = 5;  // how many values come before the arguments
  if (values.size() < kBefore) refuse();
  HostOrder order{.version = values[0], .nonce = values[1], .folder = values[3], .arguments = {}, .environment = {}};
  order.patience_s = static_cast<double>(number_or_refuse(values[2], size_t{1} << 40)) / 1000;
  const size_t count = number_or_refuse(values[4], values.size() - kBefore);
  const auto first = values.begin() + kBefore, second = first + static_cast<std::ptrdiff_t>(count);
  order.arguments.assign(first, second);
  order.environment.assign(second, values.end());
  for (const std::string& variable : order.environment)
    if (variable.find('=') == variable.npos || variable[0] == '=') refuse();
  return order;
}

}  // namespace

std::string text_of(const HostOrder& order) {
  std::string values;
  append(values, order.version);
  append(values, order.nonce);
  append(values, std::to_string(static_cast<int64_t>(order.patience_s * 1000)));
  append(values, order.folder);
  append(values, std::to_string(order.arguments.size()));
  for (const auto* list : {&order.arguments, &order.environment})
    for (const std::string& value : *list) append(values, value);
  ZS_CHECK(values.size() <= kMostBytes && order.arguments.size() + order.environment.size() + 5 <= kMostValues,
           "the command line and the variables for the hosts have ", values.size(), " bytes, expected at most ",
           kMostBytes);
  return concat(kOrder, values.size(), "\n", values);
}

HostOrder parse_order(std::string_view text) {
  const size_t end = text.substr(0, kHeaderBytes).find('\n');
  if (end == text.npos || !text.starts_with(kOrder)) refuse();
  const size_t size = number_or_refuse(text.substr(kOrder.size(), end - kOrder.size()), kMostBytes);
  if (text.size() - end - 1 != size) refuse();
  return order_of(text.substr(end + 1));
}

HostOrder read_order(int fd) {
  if (::isatty(fd) == 1) refuse();
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(kOrderS));
  std::string text;
  while (text.size() < kHeaderBytes && !text.ends_with('\n')) {
    char next = 0;
    read_exactly(fd, &next, 1, end);
    text += next;
  }
  if (!text.ends_with('\n') || !text.starts_with(kOrder)) refuse();
  const size_t header = text.size();
  text.resize(header +
              number_or_refuse(std::string_view(text).substr(kOrder.size(), header - kOrder.size() - 1), kMostBytes));
  read_exactly(fd, text.data() + header, text.size() - header, end);
  return parse_order(text);
}

int signal_of_control_line(std::string_view line) {
  constexpr std::string_view kSignal = "signal ";
  if (!line.starts_with(kSignal)) return 0;
  const int signal = static_cast<int>(number(line.substr(kSignal.size()), 64).value_or(0));
  constexpr std::array kPassedOn{SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
  return std::find(kPassedOn.begin(), kPassedOn.end(), signal) == kPassedOn.end() ? 0 : signal;
}

}  // namespace zeroshard
