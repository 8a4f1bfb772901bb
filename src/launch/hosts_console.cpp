#include "launch/hosts_console.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/format.h"

namespace zeroshard {
namespace {

constexpr std::string_view kLauncher = "[zeroshard] ";
constexpr ConsoleWriter::Seconds kReaderPatience{5}, kFinalPatience{2};
constexpr size_t kMostTold = 10'000, kMostReportBytes = size_t{1} << 16;

std::string_view headline(std::string_view report) {
  return report.substr(0, report.find('\n'));
}

bool begins_report(std::string_view line) {
  return line.starts_with("[zeroshard] job failed: ") || line.starts_with("[zeroshard] job stopped: ");
}

bool is_one_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

HostsConsole::HostsConsole(const std::vector<std::string>& names) : names_(names), reports_(names.size()) {
  consoles_[0] = std::make_unique<ConsoleWriter>(STDOUT_FILENO, kReaderPatience);
  if (!is_one_file(STDOUT_FILENO, STDERR_FILENO))
    consoles_[1] = std::make_unique<ConsoleWriter>(STDERR_FILENO, kReaderPatience);
}

ConsoleWriter& HostsConsole::console(int stream) const {
  return stream == STDERR_FILENO && consoles_[1] ? *consoles_[1] : *consoles_[0];
}

bool HostsConsole::full() const {
  return console(STDOUT_FILENO).full() || console(STDERR_FILENO).full();
}

void HostsConsole::show(size_t host, int stream, std::string_view lines, bool foreign) {
  std::string text;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(line.size() + 1);
    text += shown(host, line, foreign);
  }
  console(stream).write(text);
}

std::string HostsConsole::shown(size_t host, std::string_view line, bool foreign) {
  const bool of_launcher = line.starts_with(kLauncher);
  std::string& report = reports_[host];
  const bool of_several = names_.size() > 1;
  if (of_several && of_launcher && (!report.empty() || begins_report(line))) {
    if (report.size() < kMostReportBytes) report += concat(line, "\n");
    return {};
  }
  if (of_several && of_launcher && told_.size() < kMostTold) {
    const auto [told, is_first] = told_.emplace(line, host);
    if (!is_first && told->second != host) return {};  // a second line from the same host is shown
  }
  const bool is_unnamed = line.starts_with("zeroshard: ") || (foreign && !line.starts_with('['));
  return is_unnamed ? concat("[", names_[host], "] ", line, "\n") : concat(line, "\n");
}

void HostsConsole::notice(std::string_view text) {
  console(STDERR_FILENO).write(concat(kLauncher, text, "\n"));
}

// Returns the longest report of the failure that host `first` has reported. Reports of one failure differ in length,
// because the host on which a rank failed knows more than the others. If host `first` has no report, uses the failure
// that another host has reported.
std::string HostsConsole::report(size_t first) const {
  std::string best = reports_[first];
  for (const std::string& other : reports_)
    if (best.empty() || (other.starts_with(headline(best)) && other.size() > best.size())) best = other;
  return best;
}

void HostsConsole::finish(size_t first, const std::string& own, int code) {
  if (code != 0) console(STDERR_FILENO).write(own.empty() ? report(first) : concat(kLauncher, own, "\n"));
  for (const auto& console : consoles_)
    if (console) console->drain(kFinalPatience);
}

}  // namespace zeroshard
