#include "base/format.h"
#include "monitor/append_file.h"
#include "monitor/sink.h"

namespace zeroshard {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Returns for example metrics.2.jsonl for metrics.jsonl and 2.
std::string numbered(const std::string& name, int number) {
  const size_t dot = name.rfind('.');
  return name.substr(0, dot) + "." + std::to_string(number) + name.substr(dot);
}

bool holds_anything(const Directory& directory, const std::string& name) {
  return directory.exists(name) && directory.file_size(name) > 0;
}

}  // namespace

int set_aside(Directory& directory, const std::vector<std::string>& names) {
  std::vector<std::string> present;
  for (const std::string& name : names)
    if (holds_anything(directory, name)) present.push_back(name);
  if (present.empty()) return 0;
  const auto taken = [&](int number) {
    for (const std::string& name : names)
      if (directory.exists(numbered(name, number))) return true;
    return false;
  };
  int number = 1;
  while (taken(number)) ++number;
  for (const std::string& name : present) directory.rename(name, numbered(name, number));
  directory.sync();
  return number;
}

KeptLines keep_lines(std::string_view text, const std::function<LineVerdict(std::string_view)>& judge) {
  KeptLines kept;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    const LineVerdict verdict = judge(text.substr(0, end));
    if (verdict == LineVerdict::kKeep) kept.text += text.substr(0, end + 1);
    if (verdict == LineVerdict::kDamaged) ++kept.damaged;
    text.remove_prefix(end + 1);
  }
  return kept;  // the text after the last newline is left out, because the process died while it wrote that
}

std::string read_metrics_file(const Directory& directory, const std::string& name) {
  return directory.exists(name) ? read_small_file(directory, name, kMaxFileBytes) : "";
}

AppendFile go_on_with(const MetricsStart& start, const std::string& name, const KeptLines& kept) {
  if (kept.damaged > 0) {
    const int number = set_aside(start.directory, {name});
    start.warning(concat(start.directory.path_of(name), ": ", kept.damaged,
                         " lines are no records of metrics and were left out; the file as it was is ",
                         numbered(name, number)));
  }
  AppendFile file = AppendFile::replace(start.directory, name, kept.text);
  start.directory.sync();
  return file;
}

}  // namespace zeroshard
