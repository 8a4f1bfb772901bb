#include <nlohmann/json.hpp>

#include "monitor/append_file.h"
#include "monitor/number_text.h"
#include "monitor/sink.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

// Returns a number as JSON. NaN and infinities become the strings "NaN", "Infinity" and "-Infinity", because JSON has
// no such numbers.
std::string json_number(double value) {
  const std::string text = exact_text(value);
  const bool number = text.back() >= '0' && text.back() <= '9';
  return number ? text : "\"" + text + "\"";
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return parse_number(value.get_ref<const std::string&>());
  return std::nullopt;
}

class JsonlSink final : public MetricsSink {
 public:
  explicit JsonlSink(const MetricsStart& start) : file_(go_on_with(start, name_, kept(start))) {}

  void record(const MetricsRecord& record) override {
    std::string line = "{\"step\": " + std::to_string(record.step) + ", \"time\": " + fixed_text(record.time, 3);
    // Names are not escaped, because RunMetrics allows only characters that JSON does not escape.
    for (const auto& [name, value] : record.values) line += ", \"" + name + "\": " + json_number(value);
    file_.append(line + "}\n");
  }
  void sync() override { file_.sync(); }
  const std::string& name() const override { return name_; }

 private:
  KeptLines kept(const MetricsStart& start) const {
    if (!start.resume_step) return {};
    return keep_lines(read_metrics_file(start.directory, name_), [&](std::string_view line) {
      const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      const auto step = record.is_object() ? record.find("step") : record.end();
      if (step == record.end() || !step->is_number_integer()) return LineVerdict::kDamaged;
      if (step->get<int64_t>() > *start.resume_step) return LineVerdict::kCut;
      if (start.series == nullptr) return LineVerdict::kKeep;
      for (const auto& [name, value] : record.items()) {
        const auto series = start.series->find(name);
        const std::optional<double> number = number_of(value);
        if (number && series != start.series->end()) series->second.add(step->get<int64_t>(), *number);
      }
      return LineVerdict::kKeep;
    });
  }

  const std::string name_ = "metrics.jsonl";
  AppendFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_jsonl_sink(const MetricsStart& start) {
  return std::make_unique<JsonlSink>(start);
}

}  // namespace zeroshard
