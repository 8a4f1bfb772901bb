#include <algorithm>

#include "monitor/append_file.h"
#include "monitor/number_text.h"
#include "monitor/sink.h"

namespace zeroshard {
namespace {

// Splits a line at its commas. Nothing is quoted, because names and numbers contain no commas.
std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> fields;
  for (size_t comma = line.find(','); comma != line.npos; comma = line.find(',')) {
    fields.emplace_back(line.substr(0, comma));
    line.remove_prefix(comma + 1);
  }
  fields.emplace_back(line);
  return fields;
}

std::string joined(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) line += (line.empty() ? "" : ",") + field;
  return line + "\n";
}

// Writes one row for each record, below one header. A new name gets a column at the right. To add a column, the file is
// rewritten and replaced atomically, so it is a valid table at any moment.
class CsvSink final : public MetricsSink {
 public:
  explicit CsvSink(const MetricsStart& start)
      : directory_(&start.directory), file_(go_on_with(start, name_, kept(start))) {}

  void record(const MetricsRecord& record) override {
    const bool new_file = add_columns(record.values);
    std::vector<std::string> row(columns_.size());
    row[0] = std::to_string(record.step);
    row[1] = fixed_text(record.time, 3);
    for (const auto& [name, value] : record.values) row[column_of(name)] = exact_text(value);
    file_.append(joined(row));
    if (new_file) directory_->sync();
  }
  void sync() override { file_.sync(); }
  const std::string& name() const override { return name_; }

 private:
  size_t column_of(const std::string& name) const {
    return size_t(std::find(columns_.begin(), columns_.end(), name) - columns_.begin());
  }

  bool add_columns(const MetricValues& values) {
    std::vector<std::string> columns = columns_.empty() ? std::vector<std::string>{"step", "time"} : columns_;
    for (const auto& [name, value] : values)
      if (column_of(name) == columns_.size()) columns.push_back(name);
    if (columns.size() == columns_.size()) return false;
    const std::string more(columns.size() - columns_.size(), ',');
    std::string text = joined(columns);
    bool header = true;
    keep_lines(read_metrics_file(*directory_, name_), [&](std::string_view line) {
      if (!std::exchange(header, false)) text.append(line).append(more).append("\n");
      return LineVerdict::kCut;
    });
    file_ = AppendFile::replace(*directory_, name_, text);
    columns_ = std::move(columns);  // changed last, so that columns_ stays as it was if replace() throws
    return true;
  }

  KeptLines kept(const MetricsStart& start) {
    if (!start.resume_step) return {};
    const std::string text = read_metrics_file(start.directory, name_);
    bool header = true;
    return keep_lines(text, [&](std::string_view line) {
      const std::vector<std::string> fields = split(line);
      if (std::exchange(header, false)) {
        if (fields.size() < 2 || fields[0] != "step" || fields[1] != "time") return LineVerdict::kDamaged;
        columns_ = fields;
        return LineVerdict::kKeep;
      }
      return judge_row(fields, start);
    });
  }

  LineVerdict judge_row(const std::vector<std::string>& fields, const MetricsStart& start) const {
    const std::optional<double> step = parse_number(fields[0]);
    if (columns_.empty() || fields.size() != columns_.size() || !step) return LineVerdict::kDamaged;
    if (!(*step <= double(*start.resume_step))) return LineVerdict::kCut;
    if (start.series == nullptr) return LineVerdict::kKeep;
    for (size_t i = 2; i < fields.size(); ++i) {
      const auto series = start.series->find(columns_[i]);
      const std::optional<double> value = parse_number(fields[i]);
      if (value && series != start.series->end()) series->second.add(int64_t(*step), *value);
    }
    return LineVerdict::kKeep;
  }

  const std::string name_ = "metrics.csv";
  Directory* directory_;
  std::vector<std::string> columns_;  // the columns in the header of the file; empty if the file has none yet
  AppendFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_csv_sink(const MetricsStart& start) {
  return std::make_unique<CsvSink>(start);
}

}  // namespace zeroshard
