// Launchers meet by sending lines. The launcher of a node N > 0 begins with
//   zeroshard-launcher 2 NNODES NODE NPROC HOST JOB
// JOB is "-" if the job has no name. Node 0's launcher answers "refused WHY" or "welcome HOST". After "welcome", node
// 0's launcher sends "beat" as long as some launcher is missing, and finally "start PORT".
#include "launch/host_meeting.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/host_name.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/shown_text.h"

namespace zeroshard {
namespace {

using MeetingClock = HostPeer::Clock;
constexpr const char* kGreeting = "zeroshard-launcher";
constexpr int kProtocol = 2;
constexpr const char* kNoJob = "-";
constexpr double kMeetS = 600, kAnswerS = 10, kTellS = 5;
constexpr int kRoundMs = 500;
constexpr int kConnectMs = 3000;

double s_since(MeetingClock::time_point begin) {
  return std::chrono::duration<double>(MeetingClock::now() - begin).count();
}

// Logs what this launcher waits for, after 5 s and once more after a minute.
class WaitingLog {
 public:
  void waits(const std::string& what) {
    if (s_since(begin_) < next_s_) return;
    next_s_ = 12 * next_s_;
    log(LogLevel::kInfo, what);
  }
  double waited_s() const { return s_since(begin_); }

 private:
  MeetingClock::time_point begin_ = MeetingClock::now();
  double next_s_ = kTellS;
};

bool names_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string interface_of(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return {};
  return interface_with(own);
}

UniqueFd bound(const sockaddr* address, size_t size) {
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  if (!fd) return {};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->sa_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), address, static_cast<socklen_t>(size)) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) return {};
  return fd;
}

UniqueFd listen_for_launchers(bool on_loopback, int port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  v4.sin_addr.s_addr = htonl(on_loopback ? INADDR_LOOPBACK : INADDR_ANY);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  UniqueFd fd;
  if (!on_loopback) fd = bound(reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  const bool has_v6 = fd || errno == EADDRINUSE || errno == EACCES;
  if (on_loopback || !has_v6) fd = bound(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  if (!fd)
    throw Error(concat("port ", port, " (--master_port), where the launchers of the other hosts look for this one, ",
                       "cannot be used: ", std::strerror(errno), "; give another one on every host"));
  return fd;
}

// The line by which a launcher introduces itself.
struct Greeting {
  int protocol = 0, nnodes = 0, node = -1, nproc = 0;
  std::string host, job = kNoJob;
};

std::string job_of(const LaunchOptions& options) {
  return options.job.empty() ? kNoJob : options.job;
}

std::string greeting_of(const LaunchOptions& options) {
  return concat(kGreeting, " ", kProtocol, " ", options.nnodes, " ", options.node_rank, " ", options.nproc, " ",
                host_name(), " ", job_of(options));
}

bool read_greeting(const std::string& line, Greeting& greeting) {
  std::istringstream in(line);
  std::string word;
  in >> word >> greeting.protocol >> greeting.nnodes >> greeting.node >> greeting.nproc >> greeting.host;
  if (!in || word != kGreeting) return false;
  in >> greeting.job;
  return true;
}

// Returns why a launcher cannot take part, or "" if it can.
std::string objection(const LaunchOptions& options, const Greeting& other) {
  const std::string who = concat("node ", other.node, " (host ", other.host, ")");
  if (other.protocol != kProtocol) return who + " runs another version of zeroshard";
  if (other.nnodes != options.nnodes)
    return concat(who, " has --nnodes ", other.nnodes, ", node 0 (host ", host_name(), ") has ", options.nnodes);
  if (other.nproc != options.nproc)
    return concat(who, " has ", other.nproc, " ranks (--nproc), node 0 (host ", host_name(), ") has ", options.nproc,
                  ": all hosts need the same number");
  if (other.node < 1 || other.node >= options.nnodes)
    return concat(who, ": --node_rank is expected from 1 to ", options.nnodes - 1, " there");
  return {};
}

// Accepts the other launchers, until all have come. It runs on node 0.
class Reception {
 public:
  Reception(const LaunchOptions& options, int port)
      : options_(options), port_(port), listener_(listen_for_launchers(names_loopback(options.master_addr), port)) {}

  HostMeeting wait_for_all(int store_port) {
    WaitingLog patience;
    while (int(came_.size()) < options_.nnodes - 1) {
      std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
      for (const auto* list : {&unknown_, &came_})
        for (const HostPeer& peer : *list) fds.push_back({peer.fd(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), kRoundMs);
      accept_all();
      hear_unknown();
      hear_those_who_came();
      if (patience.waited_s() > kMeetS)
        throw Error(concat("the launchers of ", missing(), " have not come within ", kMeetS, " s to port ", port_,
                           ". Start the command on these hosts too, and check that they reach this port"));
      if (int(came_.size()) < options_.nnodes - 1)
        patience.waits(concat("waiting for the launchers of ", missing(), " at port ", port_));
    }
    for (HostPeer& peer : came_) peer.send(concat("start ", store_port));
    std::string interface;
    for (const HostPeer& peer : came_) {
      const std::string name = interface_of(peer.fd());
      if (interface.empty() || interface == "lo") interface = name;
    }
    return {std::move(came_), store_port, interface, std::move(listener_)};
  }

 private:
  void accept_all() {
    for (;;) {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) return;
      unknown_.emplace_back(std::move(socket));
    }
  }

  void hear_unknown() {
    for (HostPeer& peer : unknown_) {
      const std::vector<std::string> lines = peer.receive();
      if (!lines.empty()) admit(peer, lines.front());
      if (peer.is_open() && peer.node > 0)
        came_.push_back(std::move(peer));  // before the next peer is read, which might claim the same node
      else if (peer.silent_s() > kAnswerS)
        peer.close();
    }
    std::erase_if(unknown_, [](const HostPeer& peer) { return !peer.is_open(); });
  }

  // Answers the first line of a peer. If the peer is no launcher, closes its connection without an answer. Refuses a
  // launcher of another job, and a second launcher with the same node number. If the options of a launcher of this job
  // do not fit, refuses the launcher and throws ValueError.
  void admit(HostPeer& peer, const std::string& line) {
    Greeting greeting;
    if (!read_greeting(line, greeting)) return peer.close();
    if (greeting.job != job_of(options_)) return send_away(peer, greeting);
    const std::string why = objection(options_, greeting);
    const auto same_node = [&](const HostPeer& other) { return other.node == greeting.node; };
    const auto other = std::find_if(came_.begin(), came_.end(), same_node);
    if (!why.empty() || other != came_.end()) {
      const std::string twice = why.empty() ? concat("node ", greeting.node, " has come already, from host ",
                                                     other->host, ": each host needs its own --node_rank")
                                            : why;
      peer.send("refused " + twice);
      peer.close();
      if (!why.empty()) throw ValueError(why);
      log(LogLevel::kWarning, concat("the launcher of host ", greeting.host, " was sent away: ", twice));
      return;
    }
    peer.node = greeting.node;
    peer.host = greeting.host;
    peer.send("welcome " + host_name());
  }

  // Refuses a launcher of another job. This job goes on, because a launcher that came here by mistake must not end it.
  void send_away(HostPeer& peer, const Greeting& greeting) {
    const std::string text = concat("another job runs at port ", port_,
                                    ": give each job a --master_port of its own, and its hosts the same --job");
    peer.send("refused " + text);
    peer.close();
    log(LogLevel::kWarning, concat("the launcher of host ", greeting.host, " was sent away: ", text));
  }

  void hear_those_who_came() {
    for (HostPeer& peer : came_) {
      peer.receive();
      peer.send("beat");
    }
    std::erase_if(came_, [](const HostPeer& peer) { return !peer.is_open(); });
  }

  std::string missing() const {
    std::string text;
    int count = 0;
    for (int node = 1; node < options_.nnodes; ++node) {
      const auto is_it = [node](const HostPeer& peer) { return peer.node == node; };
      if (std::any_of(came_.begin(), came_.end(), is_it)) continue;
      text += concat(count++ == 0 ? "" : ", ", node);
    }
    return (count == 1 ? "node " : "nodes ") + text;
  }

  const LaunchOptions& options_;
  int port_;
  UniqueFd listener_;
  std::vector<HostPeer> unknown_, came_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Returns the addresses of `host`. Returns none, and sets `why`, after an error that can pass, such as a name server
// that does not answer. Throws ValueError if there is no such host.
Addresses addresses_of(const std::string& host, int port, std::string& why) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) why = ::gai_strerror(error);
  ZS_CHECK(error != EAI_NONAME, "--master_addr ", shown_text(host), " cannot be resolved: ", why);
  return {error == 0 ? list : nullptr, ::freeaddrinfo};
}

UniqueFd try_to_connect(const addrinfo& address, std::string& why) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("cannot make a socket");
  int error = ::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd waits{fd.get(), POLLOUT, 0};
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (::poll(&waits, 1, kConnectMs) == 1) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (error == 0 && ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      size == address.ai_addrlen && std::memcmp(&own, address.ai_addr, std::min<size_t>(size, 8)) == 0)
    // The system has chosen the target port as the socket's own port, so the socket is connected to itself.
    error = ECONNREFUSED;
  if (error == 0) return fd;
  why = concat(address_text(*reinterpret_cast<const sockaddr_storage*>(address.ai_addr)), ": ", std::strerror(error));
  return {};
}

UniqueFd connect_to_node_0(const std::string& host, int port, WaitingLog& patience) {
  for (;;) {
    std::string why = "no address";
    const Addresses list = addresses_of(host, port, why);
    for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next)
      if (UniqueFd fd = try_to_connect(*one, why)) return fd;
    const std::string text = concat("the launcher of node 0 at ", shown_text(host), ":", port, " (", why, ")");
    if (patience.waited_s() > kMeetS) throw Error(concat(text, " has not come within ", kMeetS, " s"));
    patience.waits("waiting for " + text);
    ::poll(nullptr, 0, 50);
  }
}

// Connects the launcher of a node N > 0 to that of node 0, and waits until all launchers have come.
HostMeeting meet_node_0(const LaunchOptions& options, int port) {
  WaitingLog patience;
  HostPeer node_0(connect_to_node_0(options.master_addr, port, patience));
  const std::string where =
      concat("at ", shown_text(options.master_addr), ":", port, " (--master_addr, --master_port)");
  node_0.send(greeting_of(options));
  while (node_0.is_open()) {
    pollfd fd{node_0.fd(), POLLIN, 0};
    ::poll(&fd, 1, kRoundMs);
    for (const std::string& line : node_0.receive()) {
      std::istringstream in(line);
      std::string word;
      int store_port = 0;
      in >> word;
      if (word == "refused") throw ValueError(concat("node 0 ", where, " refuses this host: ", line.substr(8)));
      if (word == "welcome") {
        node_0.node = 0;
        in >> node_0.host;
      }
      if (node_0.node < 0)
        throw Error(concat("there is no launcher of zeroshard ", where, ": another program answers"));
      if (word != "start" || !(in >> store_port)) continue;
      std::string interface = interface_of(node_0.fd());
      HostMeeting meeting{{}, store_port, std::move(interface), {}};
      meeting.peers.push_back(std::move(node_0));
      return meeting;
    }
    if (node_0.silent_s() > kAnswerS)
      throw Error(node_0.node < 0 ? concat("there is no launcher of zeroshard ", where,
                                           ": something takes connections ", "but says nothing for ", kAnswerS, " s")
                                  : concat("host ", node_0.host, " (node 0) has not been heard for ", kAnswerS, " s"));
    if (node_0.node == 0) patience.waits(concat("waiting for the launchers of other hosts, with node 0 ", where));
  }
  throw Error(node_0.node < 0
                  ? concat("there is no launcher of zeroshard ", where, ": another program closes the connection")
                  : concat("the launcher of node 0 on host ", node_0.host, " has ended while others were to come"));
}

}  // namespace

HostMeeting meet_hosts(const LaunchOptions& options, int port, int store_port) {
  return options.node_rank == 0 ? Reception(options, port).wait_for_all(store_port) : meet_node_0(options, port);
}

}  // namespace zeroshard
