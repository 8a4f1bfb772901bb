// The lines that launchers send to each other are "beat", "done", "failed CODE AGE_MS TEXT", "signal NUMBER AGE_MS
// HOST" and "kill NUMBER AGE_MS HOST".
#include "launch/host_link.h"

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <csignal>
#include <sstream>
#include <utility>

#include "base/format.h"

namespace zeroshard {
namespace {

constexpr double kBeatS = 1;
constexpr std::array<const char*, 3> kNewsWords{"failed", "signal", "kill"};  // for each HostNews::Kind

std::string line_of(const HostNews& news) {
  return concat(kNewsWords[static_cast<size_t>(news.kind)], " ", news.number, " ",
                static_cast<int64_t>(news.age_s * 1000), " ", news.text);
}

bool is_possible(const HostNews& news) {
  if (news.kind == HostNews::Kind::kFailed) return news.number >= 1 && news.number <= 255;
  return news.number == SIGINT || news.number == SIGTERM || news.number == SIGQUIT || news.number == SIGHUP;
}

std::optional<HostNews> read_news(const std::string& line) {
  std::istringstream in(line);
  std::string word;
  HostNews news;
  int64_t age_ms = 0;
  in >> word >> news.number >> age_ms >> std::ws;
  std::getline(in, news.text);
  news.age_s = static_cast<double>(age_ms) / 1000;
  for (size_t i = 0; i < kNewsWords.size(); ++i) {
    if (word != kNewsWords[i]) continue;
    news.kind = static_cast<HostNews::Kind>(i);
    return is_possible(news) ? std::optional(news) : std::nullopt;
  }
  return {};
}

}  // namespace

HostLink::HostLink(const LaunchOptions& options, HostMeeting meeting)
    : node_(options.node_rank),
      nproc_(options.nproc),
      patience_s_(options.stall_timeout_s),
      meeting_(std::move(meeting)) {
  for (HostPeer& peer : meeting_.peers) peer.forgive();  // a launcher can be silent while the launchers meet
}

void HostLink::add_to(std::vector<pollfd>& fds) const {
  for (const HostPeer& peer : meeting_.peers)
    if (peer.is_open()) fds.push_back({peer.fd(), POLLIN, 0});
}

// Refuses launchers that come late or a second time, and tells them why.
void HostLink::send_away() {
  if (!meeting_.listener) return;
  for (;;) {
    UniqueFd socket(::accept4(meeting_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    HostPeer(std::move(socket)).send("refused the job runs already, with the launchers of all its hosts");
  }
}

std::vector<HostNews> HostLink::look() {
  send_away();
  std::vector<HostNews> news;
  for (HostPeer& peer : meeting_.peers) {
    if (!peer.is_open()) continue;
    for (const std::string& line : peer.receive()) hear(peer, line, news);
    if (peer.is_open() && patience_s_ > 0 && peer.silent_s() > patience_s_) report_loss(peer, news);
    if (!peer.is_open() && !peer.is_over) report_loss(peer, news);
  }
  const auto now = HostPeer::Clock::now();
  if (std::chrono::duration<double>(now - told_).count() >= kBeatS) {
    told_ = now;
    pass_on(nullptr, "beat");
  }
  return news;
}

void HostLink::hear(HostPeer& from, const std::string& line, std::vector<HostNews>& news) {
  if (line == "done") from.is_over = true;
  const auto heard = read_news(line);
  if (!heard) return;  // no news, such as "beat" or "done"
  if (heard->kind == HostNews::Kind::kFailed) from.is_over = true;
  news.push_back(*heard);
  pass_on(&from, line);
}

void HostLink::report_loss(HostPeer& peer, std::vector<HostNews>& news) {
  const HostNews loss{.kind = HostNews::Kind::kFailed,
                      .number = 1,
                      .text = peer.is_open()
                                  ? concat(name(peer), " has not been heard for ", patience_s_, " s (--stall-timeout)")
                                  : concat(name(peer), " is gone: its launcher has ended without a word")};
  peer.is_over = true;
  peer.close();
  news.push_back(loss);
  pass_on(&peer, line_of(loss));
}

// Sends the line to all launchers to which this one is connected, except `from`. Node 0 is connected to all other
// nodes, and each of these only to node 0.
void HostLink::pass_on(const HostPeer* from, const std::string& line) {
  for (HostPeer& peer : meeting_.peers)
    if (&peer != from) peer.send(line);
}

void HostLink::tell(const HostNews& news) {
  pass_on(nullptr, line_of(news));
}

void HostLink::tell_done() {
  pass_on(nullptr, "done");
}

bool HostLink::is_needed() const {
  if (node_ != 0) return false;
  for (const HostPeer& peer : meeting_.peers)
    if (!peer.is_over) return true;
  return false;
}

std::string HostLink::name(const HostPeer& peer) const {
  const int first = peer.node * nproc_, last = first + nproc_ - 1;
  return concat("host ", peer.host, " (node ", peer.node, ", ",
                first == last ? concat("rank ", first) : concat("ranks ", first, " to ", last), ")");
}

}  // namespace zeroshard
