#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Shows a training run to its user, in metric files and in a progress line. Only rank 0 creates these objects. Only one
// thread may use an object. Once an object is constructed, a full disk or a closed console never stops the run.
namespace zeroshard {

class Io;

// Named values, written in this order. A name has 1 to 128 letters, digits and "_.-/", and is not "step" or "time". A
// value can be NaN or infinite. The plot shows "loss", "validation_loss" and "tokens_per_second". A progress bar shows
// "loss", "lr", "tokens_per_second" and "memory_bytes". The files and the plain lines of progress show all values.
using MetricValues = std::vector<std::pair<std::string, double>>;

struct MetricsOptions {
  std::string directory;                              // created if it is missing
  bool jsonl = true, csv = true;                      // metrics.jsonl, metrics.csv
  bool tensorboard = true;                            // events.out.tfevents.TIME.PROCESS
  bool svg = true;                                    // metrics.svg, which finish() writes
  int64_t total_steps = 0;                            // number of steps of the whole run; 0: not known
  std::optional<int64_t> resume_step = std::nullopt;  // step of the checkpoint that the run resumes from
  // Called with a line of text for the first failure of each file, and for damaged records. Unset: the line is logged
  // as a warning.
  std::function<void(const std::string&)> on_failure = nullptr;
  std::function<double()> now = nullptr;  // seconds since 1970; unset: the system's clock
};

// Writes the metrics of one run to files; docs/metrics.md has their formats.
//
// Without resume_step the run is new. The object then renames files of an earlier run to metrics.1.jsonl and so on.
// With resume_step the object appends to the existing files. It first cuts off records of later steps, because the
// resumed run will compute these steps a second time. Each object writes a new file for TensorBoard. Earlier files for
// TensorBoard stay unchanged. Instead, the new file of a resumed run says that their records of later steps are
// invalid.
class RunMetrics {
 public:
  // Throws IoError if the files cannot be created, and ValueError for invalid options.
  explicit RunMetrics(MetricsOptions options);
  RunMetrics(MetricsOptions options, Io& io);  // `io` must outlive the object
  ~RunMetrics();                               // does not call finish()
  RunMetrics(const RunMetrics&) = delete;
  RunMetrics& operator=(const RunMetrics&) = delete;

  // Appends a record. When record() returns, the record is in the files and survives the end of the process. If a write
  // to a file fails, that file lacks this record, and the next call tries to write to the file again. Throws ValueError
  // for an invalid or repeated name and for a step below the previous one, and StateError after finish().
  void record(int64_t step, const MetricValues& values);
  // Writes the plot, and returns when all files are on the disk for good. Passes errors to on_failure. Later calls do
  // nothing.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct ProgressOptions {
  int64_t total_steps = 0;  // number of steps of the whole run; positive
  int64_t start_step = 0;   // steps before this run; not 0 if the run was resumed
  int64_t every = 10;       // steps between plain lines
  int fd = 1;               // file descriptor of the output; the object copies it, and a thread of its own writes to it
  std::optional<bool> terminal = std::nullopt;  // true: draw a bar; unset: draw a bar if `fd` is a capable terminal
  std::function<double()> now = nullptr;        // seconds from any origin; unset: the steady clock
};

// Shows the progress of a run, as a bar that is redrawn in place on a terminal, and as plain lines elsewhere.
class ProgressLine {
 public:
  // Starts a thread, so the caller must create the object after the last fork. Throws ValueError for options that make
  // no sense.
  explicit ProgressLine(ProgressOptions options);
  ~ProgressLine();  // calls finish()
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows that `step` steps are done. The bar is drawn at most 10 times a second. A plain line is written at the first
  // call, at the last step, and each time a multiple of `every` is reached.
  void update(int64_t step, const MetricValues& values);
  // Prints a text, above the bar if there is one. Control characters except newline and tab become '?'.
  void message(std::string_view text);
  // Shows the last state, and moves the cursor below the bar. Waits until all output is written, or for 2 s if nobody
  // reads the output. Later updates and messages are not shown.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
