#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "file/durable.h"
#include "monitor/series.h"
#include "zeroshard/metrics.h"

namespace zeroshard {

struct MetricsRecord {
  int64_t step = 0;
  double time = 0;  // seconds since 1970
  const MetricValues& values;
};

// One file of metrics. Everything throws IoError; after an error of record() the file is as it was.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void record(const MetricsRecord& record) = 0;
  virtual void sync() = 0;
  virtual const std::string& name() const = 0;  // of the file
};

// The metrics of a run by name.
using SeriesByName = std::map<std::string, Series, std::less<>>;

// How a run begins.
struct MetricsStart {
  Directory& directory;
  std::optional<int64_t> resume_step;
  double time = 0;                                  // seconds since 1970
  SeriesByName* series = nullptr;                   // those in it get what a file keeps of the run; may be null
  std::function<void(const std::string&)> warning;  // about damage that was found
};

std::unique_ptr<MetricsSink> make_jsonl_sink(const MetricsStart& start);
std::unique_ptr<MetricsSink> make_csv_sink(const MetricsStart& start);
std::unique_ptr<MetricsSink> make_event_sink(const MetricsStart& start);

// Renames those of `names` that hold anything: NAME.ext becomes NAME.1.ext, with the first number at which none of them
// is in the way. Returns the number.
int set_aside(Directory& directory, const std::vector<std::string>& names);

// What is left of a text file when a run goes on: whole lines, without those that are no records.
struct KeptLines {
  std::string text;
  int64_t damaged = 0;  // lines that were left out and are no records; an unfinished last line does not count
};
enum class LineVerdict { kKeep, kCut, kDamaged };
KeptLines keep_lines(std::string_view text, const std::function<LineVerdict(std::string_view)>& judge);

// The contents of a file that goes on; empty where it is missing.
std::string read_metrics_file(const Directory& directory, const std::string& name);

// Opens a text file of metrics with what `kept` has. A file with damage is set aside as it was, with a warning.
class AppendFile;
AppendFile go_on_with(const MetricsStart& start, const std::string& name, const KeptLines& kept);

}  // namespace zeroshard
