#include "launch/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/check.h"

namespace zeroshard {
namespace {

UniqueFd bind_loopback(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) throw_errno("cannot make a socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  throw ValueError(
      concat("port ", port, " cannot be used: ", std::strerror(errno), "; leave out --master_port to get a free one"));
}

int port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) throw_errno("cannot read a socket's port");
  return ntohs(address.sin_port);
}

// Claims the name for a port. Returns an empty descriptor if another launcher has the name.
UniqueFd claim_name(int port) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("cannot make a socket");
  const std::string name = concat("zeroshard/master_port/", port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // the leading zero byte makes the name abstract
  const size_t size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size)) == 0) return fd;
  if (errno != EADDRINUSE) throw_errno("cannot bind a socket");
  return {};
}

}  // namespace

PortReservation::PortReservation(int port) : port_(port) {
  ZS_CHECK(port >= 0 && port < 65536, "--master_port is ", port, ", expected 1 to 65535, or 0 for a free one");
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    socket_ = bind_loopback(port);
    port_ = port_of(socket_.get());
    name_ = claim_name(port_);
    if (name_) return;
    ZS_CHECK(port == 0, "port ", port, " is held by another zeroshard run; leave out --master_port to get a free one");
  }
  throw Error("no free port on 127.0.0.1");
}

}  // namespace zeroshard
