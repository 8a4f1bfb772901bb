#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <thread>

#include "base/unique_fd.h"
#include "monitor/progress_text.h"
#include "monitor/support.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::lines_of;
using ::testing::SizeIs;
using ::testing::StartsWith;

const MetricValues kValues = {{"loss", 3.21011}, {"grad_norm", 0.93}, {"lr", 3e-4}, {"tokens_per_second", 12345}};

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, size_t(got));
  return text;
}

// What a run of `total` steps, a second each, prints to something that is no terminal.
std::string plain(ProgressOptions options, const std::function<void(ProgressLine&, double& time)>& run) {
  Pipe pipe = make_pipe();
  double time = 0;
  options.fd = pipe.write_end.get();
  options.now = [&] { return time; };
  std::string text;
  std::thread reader([&] { text = read_all(pipe.read_end.get()); });
  {
    ProgressLine progress(options);
    run(progress, time);
  }
  pipe.write_end.reset();
  reader.join();
  return text;
}

TEST(ProgressText, HasWhatIsKnown) {
  EXPECT_EQ(progress_text({20, 500, kValues, 80}),
            "step 20/500  loss 3.2101  grad_norm 0.930  lr 3.0e-04  12.3k tok/s  eta 1m20s");
  EXPECT_EQ(progress_text({1, 2, {{"loss", std::nan("")}, {"memory_bytes", 3.21e9}, {"other", 7}}, -1}),
            "step 1/2  loss NaN  mem 3.21 GB  other 7.0000");
}

TEST(ProgressText, TheBarFitsAnyWidth) {
  for (size_t columns = 0; columns < 140; ++columns) {
    SCOPED_TRACE(columns);
    const std::string bar = progress_bar({200, 500, kValues, 80}, columns);
    EXPECT_LE(bar.size(), columns);
    const std::string text = " 40% 200/500  loss 3.2101  lr 3.0e-04  12.3k tok/s  eta 1m20s";
    if (columns <= text.size())
      EXPECT_EQ(bar, text.substr(0, columns));
    else
      EXPECT_THAT(bar, EndsWith(text));
  }
  EXPECT_THAT(progress_bar({200, 500, kValues, 80}, 140), StartsWith("[============>                 ]  40% "));
  EXPECT_THAT(progress_bar({0, 500, {}, -1}, 40), StartsWith("[>                          ]   0% 0/500"));
  EXPECT_THAT(progress_bar({499, 500, {}, -1}, 80), HasSubstr("]  99% 499/500"));  // not 100 before the end
  EXPECT_THAT(progress_bar({500, 500, {}, -1}, 80), StartsWith("[==============================] 100% 500/500"));
}

TEST(ProgressLine, PlainLinesAreTheFirstTheLastAndEveryTenth) {
  const std::string text = plain({.total_steps = 25, .every = 10}, [](ProgressLine& progress, double& time) {
    for (int64_t step = 1; step <= 25; ++step) {
      time += 1;
      progress.update(step, {{"loss", double(step)}});
      if (step == 12) progress.message("validated\x1b[31m");
    }
  });
  EXPECT_THAT(lines_of(text),
              ElementsAre("step 1/25  loss 1.0000  eta 24s", "step 10/25  loss 10.0000  eta 15s", "validated?[31m",
                          "step 20/25  loss 20.0000  eta 5s", "step 25/25  loss 25.0000  eta 0s"));
}

TEST(ProgressLine, ARunThatEndsEarlyShowsWhereItDid) {
  const std::string text =
      plain({.total_steps = 1000, .start_step = 500, .every = 100}, [](ProgressLine& progress, double& time) {
        for (int64_t step = 501; step <= 503; ++step) {
          time += 2;
          progress.update(step, {});
        }
        progress.finish();
        progress.update(504, {});
        progress.message("late");
      });
  // The steps before the start took no time of this run.
  EXPECT_THAT(lines_of(text), ElementsAre("step 501/1000  eta 16m38s", "step 503/1000  eta 16m34s"));
}

TEST(ProgressLine, UpdatesThatSkipStepsAreShownToo) {
  const std::string text = plain({.total_steps = 100, .every = 10}, [](ProgressLine& progress, double&) {
    for (const int64_t step : {7, 14, 18, 21, 35, 38}) progress.update(step, {});
  });
  EXPECT_THAT(lines_of(text), ElementsAre(StartsWith("step 7/"), StartsWith("step 14/"), StartsWith("step 21/"),
                                          StartsWith("step 35/"), StartsWith("step 38/")));
}

TEST(ProgressLine, RemainingTimeFollowsTheSpeedOfTheLastSteps) {
  const std::string text = plain({.total_steps = 201, .every = 200}, [](ProgressLine& progress, double& time) {
    for (int64_t step = 1; step <= 200; ++step) {
      time += step <= 100 ? 1000 : 1;
      progress.update(step, {});
    }
  });
  EXPECT_THAT(lines_of(text).back(), EndsWith("step 200/201  eta 1s"));
}

TEST(ProgressLine, WrongOptionsAreErrors) {
  EXPECT_THROW(ProgressLine({.total_steps = 0}), ValueError);
  EXPECT_THROW(ProgressLine({.total_steps = 5, .start_step = -1}), ValueError);
  EXPECT_THROW(ProgressLine({.total_steps = 5, .every = 0}), ValueError);
}

// A terminal of 60 columns, as far as programs can tell.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    struct winsize size {};
    size.ws_row = 24;
    size.ws_col = columns;
    if (::openpty(&master_, &slave_, nullptr, nullptr, &size) != 0) throw std::runtime_error("openpty");
    reader_ = std::thread([this] { text_ = read_all(master_); });  // ends with EIO
  }
  ~Terminal() {
    finish();
    ::close(master_);
  }
  int fd() const { return slave_; }
  void resize(unsigned short columns) const {
    struct winsize size {};
    size.ws_row = 24;
    size.ws_col = columns;
    ASSERT_EQ(::ioctl(slave_, TIOCSWINSZ, &size), 0);
  }
  // All that was written.
  const std::string& finish() {
    if (slave_ >= 0) ::close(std::exchange(slave_, -1));
    if (reader_.joinable()) reader_.join();
    return text_;
  }

 private:
  int master_ = -1, slave_ = -1;
  std::thread reader_;
  std::string text_;
};

// The lines of a screen after `text`: characters, \r, \n and "erase to the end of the line".
std::vector<std::string> screen_of(const std::string& text) {
  std::vector<std::string> lines(1);
  size_t column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      lines.emplace_back();  // terminals turn \n into \r\n
    } else if (text.compare(i, 3, "\x1b[K") == 0) {
      lines.back().resize(std::min(column, lines.back().size()));
      i += 2;
    } else {
      if (lines.back().size() <= column) lines.back().resize(column + 1, ' ');
      lines.back()[column++] = text[i];
    }
  }
  return lines;
}

size_t frames_of(const std::string& text) {
  size_t frames = 0;
  for (size_t at = text.find("\x1b[K\r"); at != text.npos; at = text.find("\x1b[K\r", at + 1)) ++frames;
  return frames;
}

TEST(ProgressLine, ATerminalHasOneLineAndMessagesAboveIt) {
  Terminal terminal(100);
  double time = 0;
  {
    ProgressLine progress({.total_steps = 4, .fd = terminal.fd(), .now = [&] { return time; }});
    for (int64_t step = 1; step <= 4; ++step) {
      time += 1;
      progress.update(step, {{"loss", double(step)}});
      if (step == 2) progress.message("a checkpoint was saved\nand a second line");
    }
  }
  EXPECT_THAT(screen_of(terminal.finish()),
              ElementsAre("a checkpoint was saved", "and a second line",
                          "[==============================] 100% 4/4  loss 4.0000  eta 0s", ""));
}

TEST(ProgressLine, IsRedrawnAtMostTenTimesASecondAndAtTheEnd) {
  Terminal terminal(100);
  double time = 0;
  {
    ProgressLine progress({.total_steps = 1000, .fd = terminal.fd(), .now = [&] { return time; }});
    for (int64_t step = 1; step <= 999; ++step) {  // a millisecond each
      time += 0.001;
      progress.update(step, {});
    }
  }
  const std::string& text = terminal.finish();
  EXPECT_GE(frames_of(text), 2u);
  EXPECT_LE(frames_of(text), 11u);
  EXPECT_THAT(screen_of(text).front(), HasSubstr("99% 999/1000"));
}

TEST(ProgressLine, TheWidthIsAskedForEachTime) {
  Terminal terminal(40);
  double time = 0;
  {
    ProgressLine progress({.total_steps = 1000, .fd = terminal.fd(), .now = [&] { return time; }});
    progress.update(1, kValues);
    terminal.resize(20);  // no signal comes, the width is asked for
    time += 1;
    progress.update(2, kValues);
    progress.finish();
  }
  // The longest line that is written is one column short of the width, lest the terminal begins another one.
  const std::string& text = terminal.finish();
  EXPECT_THAT(text, StartsWith("\r  0% 1/1000  loss 3.2101  lr 3.0e-04  1\x1b[K\r"));
  EXPECT_THAT(text, HasSubstr("\r  0% 2/1000  loss 3\x1b[K\r"));
}

TEST(ProgressLine, WhatOthersPrintOverwritesTheBar) {
  Terminal terminal(60);
  {
    ProgressLine progress({.total_steps = 10, .fd = terminal.fd(), .now = [] { return 0.0; }});
    progress.update(1, {});
  }
  EXPECT_THAT(terminal.finish(), HasSubstr("1/10\x1b[K\r"));
}

TEST(ProgressLine, ADumbTerminalGetsLines) {
  const char* before = ::getenv("TERM");
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("TERM", "dumb", 1);
  Terminal terminal(60);
  {
    ProgressLine({.total_steps = 10, .fd = terminal.fd(), .now = [] { return 0.0; }}).update(1, {});
  }
  EXPECT_EQ(terminal.finish(), "step 1/10\r\n");
  before == nullptr ? ::unsetenv("TERM") : ::setenv("TERM", saved.c_str(), 1);
}

TEST(ProgressLine, AClosedPipeEndsNothing) {
  // The process would die of a SIGPIPE here.
  ASSERT_NE(::signal(SIGPIPE, SIG_DFL), SIG_ERR);
  Pipe pipe = make_pipe();
  pipe.read_end.reset();
  ProgressLine progress({.total_steps = 10, .every = 1, .fd = pipe.write_end.get()});
  for (int64_t step = 1; step <= 10; ++step) progress.update(step, kValues);
  progress.message("nobody reads this");
  progress.finish();
  sigset_t pending;
  ASSERT_EQ(::sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  sigset_t mask;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  EXPECT_EQ(sigismember(&mask, SIGPIPE), 0);  // of this thread, as before
}

TEST(ProgressLine, AFullDiskEndsNothing) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  ProgressLine progress({.total_steps = 10, .every = 1, .fd = full.get()});
  for (int64_t step = 1; step <= 10; ++step) progress.update(step, kValues);
  progress.finish();
}

TEST(ProgressLine, AReaderThatHasStoppedDoesNotStopTheRun) {
  Pipe pipe = make_pipe();
  const auto begin = std::chrono::steady_clock::now();
  {
    ProgressLine progress({.total_steps = 200000, .every = 1, .fd = pipe.write_end.get()});
    for (int64_t step = 1; step <= 200000; ++step) progress.update(step, {});  // far more than the pipe takes
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(ProgressLine, LeavesNoDescriptorOpen) {
  const auto open_descriptors = [] { return testing::names_in("/proc/self/fd").size(); };
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const size_t before = open_descriptors();
  {
    ProgressLine progress({.total_steps = 10, .fd = null.get()});
    progress.update(1, kValues);
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ProgressLine, AStoppedTerminalGetsNoHeapOfOldBars) {
  int master = -1, slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  const UniqueFd owned_master(master), owned_slave(slave);
  double time = 0;
  size_t frames = 0;
  {
    ProgressLine progress({.total_steps = 100000, .fd = slave, .terminal = true, .now = [&] { return time; }});
    for (int64_t step = 1; step <= 20000; ++step) {  // nobody reads: a terminal takes a few KB
      time += 1;
      progress.update(step, kValues);
    }
    ASSERT_EQ(::fcntl(master, F_SETFL, O_NONBLOCK), 0);
    std::string text;
    for (int tries = 0; tries < 1000 && text.find(" 20000/") == text.npos; ++tries) {
      text += read_all(master);
      time += 1;
      progress.update(20000, kValues);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_THAT(text, HasSubstr(" 20000/"));
    frames = frames_of(text);
  }
  EXPECT_LT(frames, 3000u);
}

}  // namespace
}  // namespace zeroshard
