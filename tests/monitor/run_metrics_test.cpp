#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "monitor/append_file.h"
#include "monitor/event_record.h"
#include "monitor/support.h"
#include "support/faulty_io.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using testing::contents_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::event_files;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::lines_of;
using testing::message_of;
using testing::metrics_options;
using testing::names_in;
using ::testing::Not;
using testing::put;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;

// Records steps `first` to `last`, each with its loss; every third with a validation loss.
void train(RunMetrics& metrics, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    MetricValues values = {{"loss", 10 - double(step)}, {"tokens_per_second", 100 + double(step)}};
    if (step % 3 == 0) values.push_back({"validation_loss", 20 - double(step)});
    metrics.record(step, values);
  }
}

TEST(RunMetrics, RecordsAreInTheFilesAtOnce) {
  const TemporaryDirectory directory;
  RunMetrics metrics(metrics_options(directory));
  metrics.record(1, {{"loss", 2.5}, {"lr", 3e-4}});
  EXPECT_EQ(contents_of(directory / "metrics.jsonl"),
            "{\"step\": 1, \"time\": 1700000002.000, \"loss\": 2.5, \"lr\": 3e-04}\n");
  EXPECT_EQ(contents_of(directory / "metrics.csv"), "step,time,loss,lr\n1,1700000002.000,2.5,3e-04\n");
  const std::vector<std::string> events = event_files(directory.path());
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0], HasSubstr("/events.out.tfevents.1700000001."));
  EXPECT_EQ(contents_of(events[0]), tfrecord(version_event(1'700'000'001)) +
                                        tfrecord(scalars_event(1'700'000'002, 1, {{"loss", 2.5}, {"lr", 3e-4}})));
  EXPECT_FALSE(std::filesystem::exists(directory / "metrics.svg"));
  metrics.finish();
  EXPECT_THAT(contents_of(directory / "metrics.svg"), StartsWith("<svg "));
}

TEST(RunMetrics, OnlyWhatIsWantedIsWritten) {
  const TemporaryDirectory directory;
  MetricsOptions options = metrics_options(directory);
  options.jsonl = options.tensorboard = options.svg = false;
  RunMetrics metrics(options);
  train(metrics, 1, 3);
  metrics.finish();
  EXPECT_THAT(names_in(directory.path()), ElementsAre("metrics.csv"));
}

TEST(RunMetrics, JsonHasTextsForWhatIsNotFinite) {
  const TemporaryDirectory directory;
  RunMetrics metrics(metrics_options(directory));
  metrics.record(1, {{"loss", NAN}, {"grad_norm", INFINITY}, {"x", -INFINITY}, {"y", -0.0}, {"z", 1e-320}});
  const auto record = nlohmann::json::parse(contents_of(directory / "metrics.jsonl"));
  EXPECT_EQ(record["loss"], "NaN");
  EXPECT_EQ(record["grad_norm"], "Infinity");
  EXPECT_EQ(record["x"], "-Infinity");
  EXPECT_TRUE(std::signbit(record["y"].get<double>()));
  EXPECT_EQ(record["z"].get<double>(), 1e-320);
  EXPECT_THAT(contents_of(directory / "metrics.csv"), HasSubstr(",NaN,Infinity,-Infinity,-0.0,"));
}

TEST(RunMetrics, ANewNameGetsAColumnInEveryRow) {
  const TemporaryDirectory directory;
  RunMetrics metrics(metrics_options(directory));
  metrics.record(1, {{"loss", 5}});
  metrics.record(2, {{"validation_loss", 6}, {"loss", 4}, {"perplexity", 7}});
  metrics.record(3, {{"perplexity", 8}});
  EXPECT_THAT(lines_of(contents_of(directory / "metrics.csv")),
              ElementsAre("step,time,loss,validation_loss,perplexity", "1,1700000002.000,5,,", "2,1700000003.000,4,6,7",
                          "3,1700000004.000,,,8"));
}

TEST(RunMetrics, AResumedRunHasTheRecordsOfAnUninterruptedOne) {
  const TemporaryDirectory whole, resumed;
  const auto without_times = [](const TemporaryDirectory& directory) {
    std::string text;
    for (const std::string& line : lines_of(contents_of(directory / "metrics.jsonl"))) {
      auto record = nlohmann::ordered_json::parse(line);
      record.erase("time");
      text += record.dump() + "\n";
    }
    for (const std::string& line : lines_of(contents_of(directory / "metrics.csv")))
      text += line.substr(0, line.find(',')) + line.substr(line.find(',', line.find(',') + 1)) + "\n";
    return text;
  };
  {
    RunMetrics metrics(metrics_options(whole));
    train(metrics, 1, 10);
    metrics.finish();
  }
  {
    RunMetrics metrics(metrics_options(resumed));
    train(metrics, 1, 8);
  }
  {
    RunMetrics metrics(metrics_options(resumed, 5));
    EXPECT_THAT(lines_of(contents_of(resumed / "metrics.jsonl")), SizeIs(5));
    EXPECT_THAT(lines_of(contents_of(resumed / "metrics.csv")), SizeIs(6));
    train(metrics, 6, 10);
    metrics.finish();
  }
  EXPECT_EQ(without_times(resumed), without_times(whole));
  EXPECT_EQ(contents_of(resumed / "metrics.svg"), contents_of(whole / "metrics.svg"));
  EXPECT_THAT(contents_of(whole / "metrics.svg"), HasSubstr("step 10 of 10"));
}

TEST(RunMetrics, ThePlotOfAResumedRunComesFromTheTableAlone) {
  const TemporaryDirectory whole, resumed;
  const auto options_of = [](const TemporaryDirectory& directory, std::optional<int64_t> step) {
    MetricsOptions options = metrics_options(directory, step);
    options.jsonl = false;
    return options;
  };
  {
    RunMetrics metrics(options_of(whole, std::nullopt));
    train(metrics, 1, 10);
    metrics.finish();
    RunMetrics first(options_of(resumed, std::nullopt));
    train(first, 1, 8);
  }
  RunMetrics metrics(options_of(resumed, 5));
  train(metrics, 6, 10);
  metrics.finish();
  EXPECT_EQ(contents_of(resumed / "metrics.svg"), contents_of(whole / "metrics.svg"));
}

TEST(RunMetrics, AFirstRunLeavesWhatOthersHaveWrittenForTensorboard) {
  const TemporaryDirectory directory;
  put(directory / "events.out.tfevents.1600000000.host.12.0", "a SummaryWriter's");
  { RunMetrics metrics(metrics_options(directory)); }
  EXPECT_EQ(contents_of(event_files(directory.path()).back()), tfrecord(version_event(1'700'000'001)));
  { RunMetrics metrics(metrics_options(directory)); }  // another run takes the place of the first
  EXPECT_THAT(contents_of(event_files(directory.path()).back()),
              EndsWith(tfrecord(session_start_event(1'700'000'001, 0))));
}

TEST(RunMetrics, AResumedRunTellsTensorboardWhatIsLost) {
  const TemporaryDirectory directory;
  { RunMetrics metrics(metrics_options(directory)); }
  { RunMetrics metrics(metrics_options(directory, 5)); }  // in the same second
  const std::vector<std::string> events = event_files(directory.path());
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_THAT(events[1], HasSubstr("events.out.tfevents.1700000002."));
  // Step 5 itself is not lost.
  EXPECT_THAT(contents_of(events[1]), EndsWith(tfrecord(session_start_event(1'700'000'001, 6))));
}

TEST(RunMetrics, AnUnfinishedLastLineIsDropped) {
  const TemporaryDirectory directory;
  {
    RunMetrics metrics(metrics_options(directory));
    train(metrics, 1, 4);
  }
  for (const std::string name : {"metrics.jsonl", "metrics.csv"}) {
    const std::string whole = contents_of(directory / name);
    const size_t begin = whole.rfind('\n', whole.size() - 2) + 1;
    for (size_t end = begin; end < whole.size(); ++end) {
      SCOPED_TRACE(whole.substr(begin, end - begin));
      put(directory / name, whole.substr(0, end));
      { RunMetrics metrics(metrics_options(directory, 10)); }
      EXPECT_EQ(contents_of(directory / name), whole.substr(0, begin));
    }
  }
  EXPECT_THAT(names_in(directory.path()), Not(::testing::Contains(HasSubstr(".1."))));
}

TEST(RunMetrics, DamagedLinesAreLeftOutAndTheFileIsKept) {
  const TemporaryDirectory directory;
  const std::string good = "{\"step\": 1, \"time\": 1.000, \"loss\": 2}\n";
  const std::string jsonl = std::string(4, '\0') + "\n" + good + "{\"step\": \"2\"}\n[1]\n{\"step\": 2\n" + good;
  const std::string csv = "step,time,loss\n1,1.000,2\n1,1.000\nx,1.000,2\n";
  put(directory / "metrics.jsonl", jsonl);
  put(directory / "metrics.csv", csv);
  MetricsOptions options = metrics_options(directory, 1);
  std::vector<std::string> warnings;
  options.on_failure = [&](const std::string& message) { warnings.push_back(message); };
  { RunMetrics metrics(options); }
  EXPECT_EQ(contents_of(directory / "metrics.jsonl"), good + good);
  EXPECT_EQ(contents_of(directory / "metrics.csv"), "step,time,loss\n1,1.000,2\n");
  EXPECT_EQ(contents_of(directory / "metrics.1.jsonl"), jsonl);
  EXPECT_EQ(contents_of(directory / "metrics.1.csv"), csv);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("metrics.jsonl: 4 lines"), HasSubstr("metrics.1.jsonl")),
                                    AllOf(HasSubstr("metrics.csv: 2 lines"), HasSubstr("metrics.1.csv"))));
}

TEST(RunMetrics, ATableOfSomethingElseIsNotGoneOnWith) {
  const TemporaryDirectory directory;
  put(directory / "metrics.csv", "epoch,loss\n1,2\n");
  MetricsOptions options = metrics_options(directory, 1);
  options.on_failure = nullptr;  // the log
  RunMetrics metrics(options);
  metrics.record(2, {{"loss", 3}});
  EXPECT_EQ(contents_of(directory / "metrics.1.csv"), "epoch,loss\n1,2\n");
  EXPECT_THAT(contents_of(directory / "metrics.csv"), StartsWith("step,time,loss\n2,"));
}

TEST(RunMetrics, ANewRunKeepsTheFilesOfEarlierOnes) {
  const TemporaryDirectory directory;
  for (int run = 0; run < 3; ++run) {
    RunMetrics metrics(metrics_options(directory));
    metrics.record(run + 1, {{"loss", 1}});
    metrics.finish();
  }
  for (int run = 0; run < 3; ++run) {
    const std::string suffix = run == 2 ? "" : "." + std::to_string(run + 1);
    const std::string step = std::to_string(run + 1);
    EXPECT_THAT(contents_of(directory / ("metrics" + suffix + ".jsonl")), StartsWith("{\"step\": " + step + ","));
    EXPECT_THAT(contents_of(directory / ("metrics" + suffix + ".csv")), HasSubstr("\n" + step + ","));
    EXPECT_THAT(contents_of(directory / ("metrics" + suffix + ".svg")), HasSubstr("step " + step + " of 10"));
  }
  EXPECT_THAT(event_files(directory.path()), SizeIs(3));
  EXPECT_THAT(names_in(directory.path()), SizeIs(12));
}

TEST(RunMetrics, ARunWithoutRecordsLeavesNothingToKeep) {
  const TemporaryDirectory directory;
  { RunMetrics metrics(metrics_options(directory)); }
  { RunMetrics metrics(metrics_options(directory)); }
  EXPECT_THAT(names_in(directory.path()),
              UnorderedElementsAre(HasSubstr("tfevents"), HasSubstr("tfevents"), "metrics.jsonl", "metrics.csv"));
}

TEST(RunMetrics, WrongCallsAreErrorsAndWriteNothing) {
  const TemporaryDirectory directory;
  EXPECT_THROW(RunMetrics(MetricsOptions{}), ValueError);
  RunMetrics metrics(metrics_options(directory));
  metrics.record(5, {{"loss", 1}});
  const std::string before = contents_of(directory / "metrics.jsonl");
  for (const std::string name : {"", "step", "time", "two words", "a,b", "\"", "a\nb", "ä"})
    EXPECT_THAT(message_of<ValueError>([&] { metrics.record(6, {{name, 1}}); }), HasSubstr("'" + name + "'"));
  EXPECT_THAT(message_of<ValueError>([&] { metrics.record(6, {{std::string(129, 'a'), 1}}); }), HasSubstr("1 to 128"));
  EXPECT_THAT(message_of<ValueError>([&] { metrics.record(6, {{"a", 1}, {"a", 2}}); }), HasSubstr("twice"));
  EXPECT_THAT(message_of<ValueError>([&] {
                metrics.record(4, {{"a", 1}});
              }),
              HasSubstr("step 4 come after those of step 5"));
  EXPECT_EQ(contents_of(directory / "metrics.jsonl"), before);
  metrics.record(5, {{"Loss/train-a.b_2", 1}});
  metrics.finish();
  metrics.finish();
  EXPECT_THROW(metrics.record(7, {}), StateError);
}

TEST(RunMetrics, ADirectoryThatCannotBeMadeIsAnErrorAtOnce) {
  const TemporaryDirectory directory;
  put(directory / "file", "");
  MetricsOptions options = metrics_options(directory);
  options.directory = directory / "file/below";
  EXPECT_THAT(message_of<IoError>([&] { RunMetrics metrics(options); }), HasSubstr("file"));
  options.directory = directory / "new/and/below";
  RunMetrics metrics(options);
  EXPECT_TRUE(std::filesystem::exists(directory / "new/and/below/metrics.csv"));
}

// Each call of the constructor fails once. What was there is there still, under one name or another.
TEST(RunMetrics, AnyErrorAtTheBeginIsAnIoErrorAndLosesNothing) {
  for (const std::optional<int64_t> resume_step : {std::optional<int64_t>{}, std::optional<int64_t>{2}}) {
    int64_t nth = 1;
    for (bool failed = true; failed; ++nth) {
      SCOPED_TRACE(nth);
      const TemporaryDirectory directory;
      {
        RunMetrics metrics(metrics_options(directory));
        train(metrics, 1, 4);
      }
      FaultyIo io(posix_io());
      io.fail({.op = std::nullopt, .nth = nth, .error = ENOSPC});
      try {
        RunMetrics metrics(metrics_options(directory, resume_step), io);
      } catch (const IoError& error) {
        EXPECT_THAT(error.what(), StartsWith("cannot "));
      }
      failed = io.has_failed();
      EXPECT_EQ(io.open_files(), 0);
      for (const char* extension : {"jsonl", "csv"}) {
        size_t records = 0;
        for (const std::string& name : names_in(directory.path()))
          if (name.ends_with(extension) && !name.starts_with(".tmp-"))
            records += lines_of(contents_of(directory / name)).size();
        EXPECT_GE(records, resume_step ? 2u : 4u) << extension;
      }
    }
    EXPECT_GT(nth, 15);
  }
}

// Each call of a record fails once: the run goes on, the failure is told once, and later records are there.
TEST(RunMetrics, AnyErrorOfARecordIsToldOnceAndStopsNothing) {
  for (const int64_t bytes_at_once : {-1, 7}) {
    int64_t nth = 1, times_told = 0;
    for (bool failed = true; failed; ++nth) {
      SCOPED_TRACE(nth);
      const TemporaryDirectory directory;
      FaultyIo io(posix_io());
      std::vector<std::string> told;
      MetricsOptions options = metrics_options(directory);
      options.on_failure = [&](const std::string& message) { told.push_back(message); };
      RunMetrics metrics(options, io);
      metrics.record(1, {{"loss", 1}});
      if (bytes_at_once > 0) io.limit_transfers(bytes_at_once);
      io.fail({.op = std::nullopt, .nth = nth, .error = ENOSPC});
      metrics.record(2, {{"loss", 2}, {"new", 2}});  // with a new column
      failed = io.has_failed();
      io.heal();
      io.limit_transfers(-1);
      metrics.record(3, {{"loss", 3}});
      metrics.finish();
      const std::vector<std::string> lines = lines_of(contents_of(directory / "metrics.jsonl"));
      const std::vector<std::string> rows = lines_of(contents_of(directory / "metrics.csv"));
      if (told.empty()) {  // nothing failed, or nothing that matters, such as closing what was read
        EXPECT_THAT(lines, SizeIs(3));
        EXPECT_THAT(rows, SizeIs(4));
      } else {
        ++times_told;
        EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("training goes on"), HasSubstr("No space left"))));
      }
      ASSERT_THAT(lines, SizeIs(::testing::AnyOf(2, 3)));
      for (const std::string& line : lines) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
      EXPECT_EQ(nlohmann::json::parse(lines.back())["step"], 3);
      ASSERT_THAT(rows, SizeIs(::testing::AnyOf(3, 4)));
      for (const std::string& row : rows)
        EXPECT_EQ(std::count(row.begin(), row.end(), ','), std::count(rows[0].begin(), rows[0].end(), ',')) << row;
      EXPECT_THAT(rows.back(), StartsWith("3,"));
      EXPECT_THAT(contents_of(event_files(directory.path()).at(0)),
                  EndsWith(tfrecord(scalars_event(1'700'000'004, 3, {{"loss", 3}}))));
    }
    EXPECT_GE(times_told, 6);
  }
}

TEST(RunMetrics, ADiskThatStaysFullIsToldOncePerFile) {
  const TemporaryDirectory directory;
  FaultyIo io(posix_io());
  std::vector<std::string> told;
  MetricsOptions options = metrics_options(directory);
  options.on_failure = [&](const std::string& message) { told.push_back(message); };
  RunMetrics metrics(options, io);
  train(metrics, 1, 3);
  const std::string before = contents_of(directory / "metrics.jsonl");
  io.fail({.op = IoOp::kWrite, .error = ENOSPC, .sticky = true});
  train(metrics, 4, 9);
  metrics.finish();
  EXPECT_THAT(told, ElementsAre(HasSubstr("metrics.jsonl"), HasSubstr("metrics.csv"), HasSubstr("tfevents"),
                                HasSubstr("no plot")));
  EXPECT_EQ(contents_of(directory / "metrics.jsonl"), before);
}

TEST(AppendFile, WhatAFullDiskTookOfARecordIsCutOff) {
  const TemporaryDirectory path;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, path.path());
  AppendFile file = AppendFile::create(directory, "file", "one\n");
  io.limit_transfers(8);
  io.fail({.op = IoOp::kWrite, .nth = 2, .error = ENOSPC});
  EXPECT_THROW(file.append("a record of many bytes\n"), IoError);
  EXPECT_EQ(contents_of(path / "file"), "one\n");
}

TEST(AppendFile, ATornRecordThatCouldNotBeCutIsCutBeforeTheNextOne) {
  const TemporaryDirectory path;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, path.path());
  AppendFile file = AppendFile::create(directory, "file", "one\n");
  io.limit_transfers(8);
  io.fail({.op = std::nullopt, .nth = 2, .error = ENOSPC, .sticky = true});  // a piece is written, then nothing works
  EXPECT_THROW(file.append("a record of many bytes\n"), IoError);
  EXPECT_EQ(contents_of(path / "file"), "one\na record");
  io.heal();
  file.append("2\n");
  EXPECT_EQ(contents_of(path / "file"), "one\n2\n");
}

// A process that is killed while it records, at any moment, leaves whole records but for the last.
TEST(RunMetrics, AKilledRunGoesOn) {
  for (int round = 0; round < 5; ++round) {
    const TemporaryDirectory directory;
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RunMetrics metrics(metrics_options(directory));
      for (int64_t step = 1;; ++step) {
        metrics.record(step, {{"loss", double(step)}});
        if (::write(pipe[1], &step, sizeof step) != sizeof step) ::_exit(1);
      }
    }
    int64_t recorded = 0;
    while (recorded < 50 + 20 * round) ASSERT_EQ(::read(pipe[0], &recorded, sizeof recorded), ssize_t{sizeof recorded});
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(pipe[1]);
    for (int64_t step = 0; ::read(pipe[0], &step, sizeof step) > 0;) recorded = step;
    ::close(pipe[0]);
    { RunMetrics metrics(metrics_options(directory, 1'000'000)); }
    const std::vector<std::string> lines = lines_of(contents_of(directory / "metrics.jsonl"));
    EXPECT_GE(int64_t(lines.size()), recorded);
    EXPECT_GE(int64_t(lines_of(contents_of(directory / "metrics.csv")).size()), recorded + 1);
    for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(nlohmann::json::parse(lines[i])["step"], i + 1);
  }
}

}  // namespace
}  // namespace zeroshard
