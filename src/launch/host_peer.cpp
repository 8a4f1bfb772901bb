#include "launch/host_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/shown_text.h"

namespace zeroshard {
namespace {

constexpr size_t kLineBytes = 4096;  // more than any line that a launcher writes

}  // namespace

HostPeer::HostPeer(UniqueFd socket) : socket_(std::move(socket)) {
  const int on = 1;
  set_nonblocking(socket_.get());
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::vector<std::string> HostPeer::receive() {
  std::vector<std::string> lines;
  std::array<char, 4096> buffer;
  send_rest();
  while (socket_) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      close();
      break;
    }
    heard_ = Clock::now();
    begun_.append(buffer.data(), static_cast<size_t>(got));
    for (size_t end = begun_.find('\n'); end != std::string::npos; end = begun_.find('\n')) {
      lines.push_back(shown_text(begun_.substr(0, end), kLineBytes));
      begun_.erase(0, end + 1);
    }
    if (begun_.size() > kLineBytes) close();
  }
  return lines;
}

void HostPeer::send(std::string_view line) {
  if (!socket_) return;
  unsent_ += shown_text(line, kLineBytes - 1) + "\n";
  send_rest();
}

void HostPeer::send_rest() {
  while (socket_ && !unsent_.empty()) {
    const ssize_t sent = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    unsent_.erase(0, static_cast<size_t>(sent));
  }
}

double HostPeer::silent_s() const {
  return std::chrono::duration<double>(Clock::now() - heard_).count();
}

}  // namespace zeroshard
