#include <algorithm>
#include <charconv>
#include <limits>

#include "base/format.h"
#include "base/process_name.h"
#include "monitor/append_file.h"
#include "monitor/event_record.h"
#include "monitor/sink.h"

namespace zeroshard {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Returns a name for a new file. TensorBoard reads the files of a directory in the order of their names, which begin
// with a time in seconds. So the new name has the later of `time` and the second after the latest time of the other
// names. Times from 9999999999 on are ignored, because the next second has more than ten digits and would not sort
// last.
std::string new_name(const Directory& directory, double time) {
  auto seconds = int64_t(time);
  for (const std::string& name : directory.list()) {
    if (!name.starts_with(kPrefix)) continue;
    int64_t other = 0;
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
    if (parsed.ec == std::errc() && other < 9'999'999'999) seconds = std::max(seconds, other + 1);
  }
  std::string digits = std::to_string(seconds);
  digits.insert(0, digits.size() < 10 ? 10 - digits.size() : 0, '0');
  return concat(kPrefix, digits, ".", process_name());
}

// Returns whether the directory has an event file of an earlier run of zeroshard. The names of other programs' files,
// such as those of torch's SummaryWriter, end differently.
bool holds_earlier_run(const Directory& directory) {
  const std::vector<std::string> names = directory.list();
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.starts_with(kPrefix) && ends_as_process_name(name); });
}

class EventSink final : public MetricsSink {
 public:
  explicit EventSink(const MetricsStart& start)
      : name_(new_name(start.directory, start.time)),
        file_(AppendFile::create(start.directory, name_, first_records(start))) {
    start.directory.sync();
  }

  void record(const MetricsRecord& record) override {
    file_.append(tfrecord(scalars_event(record.time, record.step, record.values)));
  }
  void sync() override { file_.sync(); }
  const std::string& name() const override { return name_; }

 private:
  // Returns the first records of the file. They are only the version, unless the run resumes or the directory has files
  // of an earlier run. In these cases two session starts follow the version. The second one has the first step of this
  // run. It makes TensorBoard drop the earlier records of that step and of later steps in all files of the directory,
  // also in those of other programs. The first one is needed because TensorBoard's server ignores the step of the first
  // session start that it reads. It has the largest step, so that a reader that does not ignore this step drops
  // nothing.
  static std::string first_records(const MetricsStart& start) {
    const std::string version = tfrecord(version_event(start.time));
    if (!start.resume_step && !holds_earlier_run(start.directory)) return version;
    const int64_t first_step = start.resume_step ? *start.resume_step + 1 : 0;
    return version + tfrecord(session_start_event(start.time, std::numeric_limits<int64_t>::max())) +
           tfrecord(session_start_event(start.time, first_step));
  }

  const std::string name_;
  AppendFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_event_sink(const MetricsStart& start) {
  return std::make_unique<EventSink>(start);
}

}  // namespace zeroshard
