// What a process that reaches a host writes, as its launcher and its console understand it.
#include "launch/host_connection.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "launch/hosts_console.h"
#include "zeroshard/version.h"

namespace zeroshard {
namespace {

TEST(HostConnection, OnlyMarksWithTheNonceOfTheOrderCount) {
  const std::string script =
      "printf 'zeroshard-host begins\\nzeroshard-host 4f begins\\nzeroshard-host ends with code 0\\n"
      "zeroshard-host 5f ends with code 0\\nleftzeroshard-host 4f ends with code 3\\n'";
  const HostOrder order{
      .version = kVersion, .nonce = "4f", .patience_s = 5, .folder = "/", .arguments = {}, .environment = {}};
  sigset_t none;
  ::sigemptyset(&none);
  ::signal(SIGPIPE, SIG_IGN);  // the shell may end before it is given the order
  HostConnection host({"one", {"/bin/sh", "-c", script}, order}, none);
  std::string said;
  while (!host.is_over()) host.look();
  while (const auto lines = host.read(STDOUT_FILENO)) said += *lines;
  EXPECT_EQ(said, "zeroshard-host begins\nzeroshard-host ends with code 0\nzeroshard-host 5f ends with code 0\nleft\n");
  EXPECT_TRUE(host.has_begun());
  EXPECT_EQ(host.code(), 3);
}

constexpr std::string_view kFailed = "[zeroshard] job failed: x\n", kAgain = "[zeroshard] restart 1\n";

std::string shown(const std::vector<std::string>& names, int code) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  HostsConsole console(names);
  for (size_t host = 0; host < names.size(); ++host)
    for (const std::string_view line : {kAgain, kAgain, kFailed}) console.show(host, STDERR_FILENO, line, false);
  console.finish(0, "", code);
  return ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
}

TEST(HostsConsole, OneHostIsShownAsItIs) {
  for (const int code : {0, 1}) EXPECT_EQ(shown({"one"}, code), std::string(kAgain).append(kAgain).append(kFailed));
}

TEST(HostsConsole, WhatSeveralHostsSayAlikeIsShownOnceAndAReportOnlyOfAFailure) {
  const std::string once = std::string(kAgain).append(kAgain);
  EXPECT_EQ(shown({"one", "two"}, 1), once + std::string(kFailed));
  EXPECT_EQ(shown({"one", "two"}, 0), once);
}

}  // namespace
}  // namespace zeroshard
