#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Output of a training run for its user: metric files and a progress line. Only rank 0 makes these; each object is for
// one thread. Full disks and closed consoles never stop a run.
namespace zeroshard {

class Io;

// Written in this order. Names consist of letters, digits and "_.-/"; a value may be NaN or infinite. The plot and the
// progress line know "loss", "validation_loss", "perplexity", "grad_norm", "lr", "tokens_per_second" and
// "memory_bytes"; other names are only written to the files.
using MetricValues = std::vector<std::pair<std::string, double>>;

struct MetricsOptions {
  std::string directory;                              // created where it is missing
  bool jsonl = true, csv = true;                      // metrics.jsonl, metrics.csv
  bool tensorboard = true;                            // events.out.tfevents.TIME.PROCESS
  bool svg = true;                                    // metrics.svg, by finish()
  int64_t total_steps = 0;                            // of the whole run; 0: not known
  std::optional<int64_t> resume_step = std::nullopt;  // step of the checkpoint that the run resumes from
  // Called with one line for the first failure of each file, and for damaged records; unset: a warning in the log.
  std::function<void(const std::string&)> on_failure = nullptr;
  std::function<double()> now = nullptr;  // seconds since 1970; unset: the system's clock
};

// The metrics of one run as files; docs/metrics.md has their formats.
//
// Without resume_step a run is new: files of an earlier run are kept as metrics.1.jsonl and so on. With it, the files
// are continued; records of later steps, which belong to the lost part of the run, are cut off.
class RunMetrics {
 public:
  // Throws IoError when the files cannot be created, ValueError for invalid options.
  explicit RunMetrics(MetricsOptions options);
  RunMetrics(MetricsOptions options, Io& io);  // `io` outlives the object
  ~RunMetrics();                               // does not finish()
  RunMetrics(const RunMetrics&) = delete;
  RunMetrics& operator=(const RunMetrics&) = delete;

  // When it returns, the record is in the files and survives the end of the process. A file that could not be written
  // is tried again with the next record. Throws ValueError for an invalid or repeated name and for a step below the
  // previous one, and StateError after finish().
  void record(int64_t step, const MetricValues& values);
  // Makes the files durable and writes the plot. Later calls do nothing.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct ProgressOptions {
  int64_t total_steps = 0;                      // of the whole run; positive
  int64_t start_step = 0;                       // steps done before: a resumed run starts here
  int64_t every = 10;                           // steps between plain lines
  int fd = 1;                                   // written to from a thread of its own, through a copy
  std::optional<bool> terminal = std::nullopt;  // whether to draw a bar; unset: if `fd` is a capable terminal
  std::function<double()> now = nullptr;        // seconds from any origin; unset: the steady clock
};

// A bar that is redrawn in place on a terminal, plain lines elsewhere.
class ProgressLine {
 public:
  // Create it after the last fork. Throws ValueError for options that make no sense.
  explicit ProgressLine(ProgressOptions options);
  ~ProgressLine();  // finishes
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `step` steps are done. Draws at most 10 times a second; plain lines are the first, the last and one per `every`.
  void update(int64_t step, const MetricValues& values);
  // Prints lines above the bar. Control characters become '?'.
  void message(std::string_view text);
  // Shows the last state and leaves the cursor on a new line. Waits until it is written, but at most 2 s for a reader
  // that takes nothing. Later updates and messages are not shown.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
