#include "base/console_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "base/unique_fd.h"

namespace zeroshard {
namespace {

using Seconds = ConsoleWriter::Seconds;
constexpr Seconds kShort{0.1}, kLong{30};

std::string read_all(int fd, std::atomic<size_t>* received = nullptr) {
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
    if (received != nullptr) *received = text.size();
  }
  return text;
}

TEST(ConsoleWriter, WritesAllInOrder) {
  Pipe pipe = make_pipe();
  std::string text;
  std::thread reader([&] { text = read_all(pipe.read_end.get()); });
  std::string expected;
  {
    ConsoleWriter console(pipe.write_end.get(), kLong);
    for (int i = 0; i < 20000; ++i) {
      const std::string line = "line " + std::to_string(i) + "\n";
      console.write(line);
      expected += line;
    }
    console.drain(kLong);
  }
  pipe.write_end.reset();
  reader.join();
  EXPECT_EQ(text, expected);
}

TEST(ConsoleWriter, AFullQueueAsksTheCallerToWait) {
  Pipe pipe = make_pipe();
  ConsoleWriter console(pipe.write_end.get(), kLong);
  EXPECT_FALSE(console.full());
  console.write(std::string(5 << 20, 'x'));
  EXPECT_TRUE(console.full());
  std::thread reader([&] { read_all(pipe.read_end.get()); });
  console.drain(kLong);
  EXPECT_FALSE(console.full());
  pipe.write_end.reset();
  reader.join();
}

TEST(ConsoleWriter, DropsLinesWhenNobodyReadsAndSaysHowMany) {
  Pipe pipe = make_pipe();
  ConsoleWriter console(pipe.write_end.get(), kShort);
  console.write(std::string(5 << 20, 'x') + "\n");
  console.drain(kShort);  // returns although nobody reads
  EXPECT_FALSE(console.full());
  console.write("lost 1\nlost 2\n");
  console.write("lost 3\n");
  std::string text;
  std::atomic<size_t> received = 0;
  std::thread reader([&] { text = read_all(pipe.read_end.get(), &received); });
  while (received <= size_t{5} << 20) std::this_thread::yield();
  console.drain(kLong);
  console.write("seen\n");
  console.drain(kLong);
  pipe.write_end.reset();
  reader.join();
  EXPECT_THAT(text, ::testing::EndsWith("x\n[zeroshard] 3 lines dropped: nobody read them for 0.1 s\nseen\n"));
}

TEST(ConsoleWriter, SurvivesAClosedPipeAndAFullDisk) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  pipe.read_end.reset();
  ConsoleWriter closed(pipe.write_end.get(), kLong);
  const UniqueFd device(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ConsoleWriter full(device.get(), kLong);
  for (ConsoleWriter* console : {&closed, &full}) {
    for (int i = 0; i < 20; ++i) console->write(std::string(1 << 20, 'x'));
    console->drain(kLong);
    EXPECT_FALSE(console->full());
  }
}

}  // namespace
}  // namespace zeroshard
