#include <algorithm>
#include <chrono>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "monitor/plot.h"
#include "monitor/sink.h"
#include "zeroshard/metrics.h"

namespace zeroshard {
namespace {

const std::string kPlotName = "metrics.svg";
constexpr size_t kMaxNameBytes = 128;

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-' || c == '/';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), allowed) &&
         name != "step" && name != "time";
}

void check_names(const MetricValues& values) {
  std::set<std::string_view> names;
  for (const auto& [name, value] : values) {
    ZS_CHECK(is_name(name), "a metric cannot be called '", name, "': a name has 1 to ", kMaxNameBytes,
             " letters, digits and \"_.-/\", and is not \"step\" or \"time\"");
    ZS_CHECK(names.insert(name).second, "the metric '", name, "' is twice in one record");
  }
}

MetricsOptions checked(MetricsOptions options) {
  ZS_CHECK(!options.directory.empty(), "directory must not be empty");
  ZS_CHECK(options.total_steps >= 0, "total_steps must not be negative, got ", options.total_steps);
  ZS_CHECK(options.resume_step.value_or(0) >= 0, "resume_step must not be negative, got ", *options.resume_step);
  if (!options.on_failure) options.on_failure = [](const std::string& message) { log(LogLevel::kWarning, message); };
  if (!options.now) options.now = system_seconds;
  return options;
}

}  // namespace

class RunMetrics::Impl {
 public:
  Impl(MetricsOptions options, Io& io)
      : options_(checked(std::move(options))), directory_(Directory::create(io, options_.directory)) {
    if (!options_.resume_step) set_aside(directory_, {"metrics.jsonl", "metrics.csv", kPlotName});
    last_step_ = options_.resume_step.value_or(0);
    MetricsStart start{directory_, options_.resume_step, options_.now(), &series_, options_.on_failure};
    if (options_.jsonl) sinks_.push_back({make_jsonl_sink(start)});
    for (const auto& [name, series] : series_)
      if (!series.empty()) start.series = nullptr;  // the JSONL file gave the earlier records already
    if (options_.csv) sinks_.push_back({make_csv_sink(start)});
    if (options_.tensorboard) sinks_.push_back({make_event_sink(start)});
  }

  void record(int64_t step, const MetricValues& values) {
    if (finished_) throw StateError("metrics are recorded after finish()");
    ZS_CHECK(step >= last_step_, "metrics of step ", step, " come after those of step ", last_step_);
    check_names(values);
    last_step_ = step;
    const MetricsRecord record{step, options_.now(), values};
    for (Sink& sink : sinks_) try_to(sink, [&] { sink.file->record(record); });
    if (!options_.svg) return;
    for (const auto& [name, value] : values)
      if (const auto series = series_.find(name); series != series_.end()) series->second.add(step, value);
  }

  void finish() {
    if (std::exchange(finished_, true)) return;
    for (Sink& sink : sinks_) try_to(sink, [&] { sink.file->sync(); });
    if (!options_.svg) return;
    try {
      write_small_file(directory_, kPlotName, plot_svg(series_, options_.total_steps));
    } catch (const std::exception& error) {
      options_.on_failure(concat("no plot of the metrics: ", error.what()));
    }
  }

 private:
  struct Sink {
    std::unique_ptr<MetricsSink> file;
    bool failed = false;
  };

  template <typename Call>
  void try_to(Sink& sink, const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      if (std::exchange(sink.failed, true)) return;
      options_.on_failure(concat("metrics are missing in ", directory_.path_of(sink.file->name()),
                                 ", training goes on: ", error.what()));
    }
  }

  MetricsOptions options_;
  Directory directory_;
  SeriesByName series_ = plotted_series();
  std::vector<Sink> sinks_;
  int64_t last_step_ = 0;
  bool finished_ = false;
};

RunMetrics::RunMetrics(MetricsOptions options) : RunMetrics(std::move(options), shared_posix_io()) {}
RunMetrics::RunMetrics(MetricsOptions options, Io& io) : impl_(std::make_unique<Impl>(std::move(options), io)) {}
RunMetrics::~RunMetrics() = default;

void RunMetrics::record(int64_t step, const MetricValues& values) {
  impl_->record(step, values);
}

void RunMetrics::finish() {
  impl_->finish();
}

}  // namespace zeroshard
