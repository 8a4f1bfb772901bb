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

// Writes one file of metrics. record() and sync() throw IoError. After an error in record(), the file is still valid,
// and can have the record or lack it.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void record(const MetricsRecord& record) = 0;
  virtual void sync() = 0;
  virtual const std::string& name() const = 0;  // the name of the file
};

// The metrics of a run by name.
using SeriesByName = std::map<std::string, Series, std::less<>>;

// The inputs of a sink that is created at the start of a run.
struct MetricsStart {
  Directory& directory;
  std::optional<int64_t> resume_step;
  double time = 0;                                  // seconds since 1970
  SeriesByName* series = nullptr;                   // gets the earlier records that the file keeps; may be null
  std::function<void(const std::string&)> warning;  // called if a file is damaged
};

std::unique_ptr<MetricsSink> make_jsonl_sink(const MetricsStart& start);
std::unique_ptr<MetricsSink> make_csv_sink(const MetricsStart& start);
std::unique_ptr<MetricsSink> make_event_sink(const MetricsStart& start);

// Renames those files of `names` that exist and are not empty. NAME.ext becomes NAME.N.ext, with the smallest N from 1
// on for which none of `names` has such a file. Returns N, or 0 if there is nothing to rename.
int set_aside(Directory& directory, const std::vector<std::string>& names);

// The lines of a text file that a run keeps when it resumes.
struct KeptLines {
  std::string text;
  int64_t damaged = 0;  // how many invalid lines were left out; an unfinished last line does not count
};
// kCut: the line is valid, but is not kept, for example because its step is after the one from which the run resumes.
enum class LineVerdict { kKeep, kCut, kDamaged };
// Asks `judge` about each line of `text`, and collects the lines to keep. Leaves out a last line without a newline.
KeptLines keep_lines(std::string_view text, const std::function<LineVerdict(std::string_view)>& judge);

// Returns the contents of a file that a run continues, or "" if the file is missing.
std::string read_metrics_file(const Directory& directory, const std::string& name);

// Replaces the contents of the text file `name` by the lines of `kept`, and returns the file. If `kept` lacks damaged
// lines of the old file, keeps the old file under another name (see set_aside()) and calls `start.warning`.
class AppendFile;
AppendFile go_on_with(const MetricsStart& start, const std::string& name, const KeptLines& kept);

}  // namespace zeroshard
