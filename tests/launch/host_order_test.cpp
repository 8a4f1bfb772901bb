// What a host is told over ssh: every byte arrives, and what is no order is refused.
#include "launch/host_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/unique_fd.h"
#include "support/mutation.h"
#include "zeroshard/error.h"
#include "zeroshard/version.h"

namespace zeroshard {
namespace {

constexpr std::string_view kOrderBytes = "0123456789:,=\n -ab\xff";

using ::testing::HasSubstr;

HostOrder sample() {
  std::string bytes;
  for (int byte = 1; byte < 256; ++byte) bytes += static_cast<char>(byte);
  return {.version = kVersion,
          .nonce = "4f",
          .patience_s = 10,
          .folder = "/a $(touch x)\n'\"",
          .arguments = {"", "--nproc=2", bytes, "3:abc,", std::string(200'000, 'x')},
          .environment = {"A=", "B==1", "C=" + bytes}};
}

void expect_same(const HostOrder& read, const HostOrder& written) {
  EXPECT_EQ(read.version, written.version);
  EXPECT_EQ(read.nonce, written.nonce);
  EXPECT_EQ(read.patience_s, written.patience_s);
  EXPECT_EQ(read.folder, written.folder);
  EXPECT_EQ(read.arguments, written.arguments);
  EXPECT_EQ(read.environment, written.environment);
}

std::string error_of(const std::string& text) {
  try {
    parse_order(text);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

TEST(HostOrder, EveryByteArrives) {
  expect_same(parse_order(text_of(sample())), sample());
}

TEST(HostOrder, IsReadFromAPipeInPiecesAndNoFurther) {
  Pipe pipe = make_pipe();
  const std::string text = text_of(sample()) + "signal 15\n";
  std::thread writer([&] {
    for (size_t at = 0; at < text.size(); at += 1000) {
      const size_t size = std::min<size_t>(1000, text.size() - at);
      EXPECT_EQ(::write(pipe.write_end.get(), text.data() + at, size), static_cast<ssize_t>(size));
    }
  });
  expect_same(read_order(pipe.read_end.get()), sample());
  writer.join();
  char rest[20] = {};
  EXPECT_EQ(::read(pipe.read_end.get(), rest, sizeof rest), 10);
  EXPECT_STREQ(rest, "signal 15\n");
}

TEST(HostOrder, AnotherVersionIsNamed) {
  HostOrder order = sample();
  order.version = "9.9";
  EXPECT_THAT(error_of(text_of(order)), HasSubstr("the one that starts the job has 9.9: install the same version"));
}

TEST(HostOrder, ACutOneIsRefused) {
  HostOrder order = sample();
  order.arguments.pop_back();
  const std::string text = text_of(order);
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(error_of(text.substr(0, size)), HasSubstr("no order of another host's zeroshard")) << size;
    if (size % 50 != 0) continue;
    Pipe pipe = make_pipe();
    EXPECT_EQ(::write(pipe.write_end.get(), text.data(), size), static_cast<ssize_t>(size));
    pipe.write_end.reset();
    EXPECT_THROW(read_order(pipe.read_end.get()), ValueError);
  }
}

TEST(HostOrder, MutatedOnesAreRefusedOrSound) {
  HostOrder order = sample();
  order.arguments.pop_back();
  const std::string text = text_of(order);
  for (const uint64_t seed : zeroshard::testing::seeds(20'000)) {
    zeroshard::testing::SeededRandom random(seed);
    try {
      const HostOrder read = parse_order(zeroshard::testing::mutated(text, kOrderBytes, random));
      EXPECT_EQ(read.version, kVersion);
      EXPECT_GE(read.patience_s, 0);
      for (const std::string& variable : read.environment) EXPECT_GT(variable.find('='), 0U);
      for (const std::string& argument : read.arguments) EXPECT_EQ(argument.find('\0'), argument.npos);
      expect_same(parse_order(text_of(read)), read);
    } catch (const ValueError&) {
    }
  }
}

TEST(HostOrder, ControlLinesNameSignalsThatMayBePassedOn) {
  EXPECT_EQ(signal_of_control_line("signal 15"), SIGTERM);
  EXPECT_EQ(signal_of_control_line("signal 20"), SIGTSTP);
  for (const char* line : {"", "beat", "signal", "signal ", "signal 9", "signal 19", "signal 0", "signal -15",
                           "signal 15 ", "signal 4294967311", "SIGNAL 15"})
    EXPECT_EQ(signal_of_control_line(line), 0) << line;
}

}  // namespace
}  // namespace zeroshard
