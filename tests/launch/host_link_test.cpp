// HostLink over a pair of sockets: what one launcher tells, the others hear, and a silent or lost one is named.
#include "launch/host_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <utility>

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Node 0 with nodes 1 and 2, each of two ranks. sockets[i] is the end of node i + 1.
struct Star {
  explicit Star(double stall_timeout_s = 0, int waits_ms = 0) {
    LaunchOptions options;
    options.nproc = 2;
    options.nnodes = 3;
    options.stall_timeout_s = stall_timeout_s;
    HostMeeting meeting;
    for (int node = 1; node < 3; ++node) {
      int pair[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      meeting.peers.emplace_back(UniqueFd(pair[0]));
      meeting.peers.back().node = node;
      meeting.peers.back().host = node == 1 ? "one" : "two";
      leaves.emplace_back(UniqueFd(pair[1]));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(waits_ms));  // for a launcher that comes late
    link.emplace(options, std::move(meeting));
  }

  std::vector<HostPeer> leaves;
  std::optional<HostLink> link;
};

std::vector<std::string> without_beats(std::vector<std::string> lines) {
  std::erase(lines, "beat");
  return lines;
}

TEST(HostLink, NodeZeroPassesOnWhatItHears) {
  Star star;
  star.leaves[0].send("failed 7 250 rank 2 died");
  star.leaves[0].send("beat");
  const auto news = star.link->look();
  ASSERT_EQ(news.size(), 1U);
  EXPECT_EQ(news[0].kind, HostNews::Kind::kFailed);
  EXPECT_EQ(news[0].number, 7);
  EXPECT_EQ(news[0].text, "rank 2 died");
  EXPECT_DOUBLE_EQ(news[0].age_s, 0.25);
  EXPECT_THAT(without_beats(star.leaves[1].receive()), ::testing::ElementsAre("failed 7 250 rank 2 died"));
  EXPECT_THAT(without_beats(star.leaves[0].receive()), IsEmpty());
}

TEST(HostLink, LinesAreWholeThoughTheSystemTakesThemLate) {
  Star star;
  const std::string line(3000, 'x');
  constexpr int kLines = 200;  // more than a socket holds
  for (int i = 0; i < kLines; ++i) star.leaves[0].send("signal 15 0 " + line + std::to_string(i));
  std::vector<HostNews> heard;
  while (heard.size() < kLines) {
    for (HostNews& each : star.link->look()) heard.push_back(std::move(each));
    star.leaves[0].receive();  // sends more
  }
  for (int i = 0; i < kLines; ++i) EXPECT_EQ(heard[size_t(i)].text, line + std::to_string(i));
}

TEST(HostLink, ItsOwnNewsReachAll) {
  Star star;
  star.link->tell({HostNews::Kind::kSignal, SIGTERM, "zero\n\x1b[31m", 0});
  for (HostPeer& leaf : star.leaves)
    EXPECT_THAT(leaf.receive(), ::testing::ElementsAre("signal 15 0 zero\\x0a\\x1b[31m"));
}

TEST(HostLink, ALostLauncherIsNamedOnceUnlessItHasTold) {
  Star star;
  star.leaves[0].close();
  star.leaves[1].send("done");
  star.leaves[1].close();
  const auto news = star.link->look();
  ASSERT_EQ(news.size(), 1U);
  EXPECT_THAT(news[0].text, HasSubstr("host one (node 1, ranks 2 to 3) is gone"));
  EXPECT_EQ(news[0].number, 1);
  EXPECT_THAT(star.link->look(), IsEmpty());
  EXPECT_FALSE(star.link->is_needed());
}

TEST(HostLink, ASilentLauncherIsNamed) {
  Star star(/*stall_timeout_s=*/0.2);
  std::vector<HostNews> news;
  while (news.empty()) {
    star.leaves[1].send("beat");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    news = star.link->look();
  }
  ASSERT_EQ(news.size(), 1U);
  EXPECT_THAT(news[0].text, HasSubstr("host one (node 1, ranks 2 to 3) has not been heard for 0.2 s"));
  EXPECT_TRUE(star.link->is_needed());  // for node 2
}

TEST(HostLink, TheTimeOfTheMeetingIsNoSilence) {
  Star star(/*stall_timeout_s=*/2, /*waits_ms=*/2100);
  EXPECT_THAT(star.link->look(), IsEmpty());
}

TEST(HostLink, LinesThatNoLauncherWritesAreIgnored) {
  Star star;
  for (const char* line :
       {"", "failed", "failed 0 0 x", "failed 256 0 x", "signal 9 0 x", "kill x", "beat beat", "\x01"})
    star.leaves[0].send(line);
  EXPECT_THAT(star.link->look(), IsEmpty());
  const std::string endless(100'000, 'x');
  [[maybe_unused]] const ssize_t sent = ::send(star.leaves[0].fd(), endless.data(), endless.size(), MSG_NOSIGNAL);
  EXPECT_EQ(star.link->look().size(), 1U);  // that peer is no launcher: it is lost
}

}  // namespace
}  // namespace zeroshard
