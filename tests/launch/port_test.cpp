#include "launch/port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>
#include <set>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// A listener as the store of rank 0 makes it; family AF_INET6 listens on every interface.
bool can_listen(int port, int family) {
  const UniqueFd fd(::socket(family, SOCK_STREAM, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  const bool bound = family == AF_INET ? ::bind(fd.get(), reinterpret_cast<sockaddr*>(&v4), sizeof v4) == 0
                                       : ::bind(fd.get(), reinterpret_cast<sockaddr*>(&v6), sizeof v6) == 0;
  return bound && ::listen(fd.get(), 8) == 0;
}

TEST(PortReservation, RankZeroCanListenOnAHeldPort) {
  const PortReservation held(0);
  EXPECT_GT(held.port(), 0);
  EXPECT_TRUE(can_listen(held.port(), AF_INET));
  EXPECT_TRUE(can_listen(held.port(), AF_INET6));
}

TEST(PortReservation, ManyAtOnceNeverCollide) {
  std::deque<PortReservation> held;
  std::set<int> ports;
  for (int i = 0; i < 300; ++i) ports.insert(held.emplace_back(0).port());
  EXPECT_EQ(ports.size(), 300u);
}

// Outgoing connections take ports as well.
TEST(PortReservation, AHeldPortIsGivenToNobodyElse) {
  std::deque<PortReservation> held;
  std::set<int> ports;
  for (int i = 0; i < 300; ++i) ports.insert(held.emplace_back(0).port());
  std::deque<UniqueFd> others;
  for (int i = 0; i < 300; ++i) {
    const UniqueFd& fd = others.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_FALSE(ports.contains(ntohs(address.sin_port)));
  }
}

TEST(PortReservation, APortGivenByNameIsHeldOnce) {
  const int port = PortReservation(0).port();
  const PortReservation held(port);
  EXPECT_EQ(held.port(), port);
  EXPECT_THROW(PortReservation{port}, ValueError);
}

TEST(PortReservation, RefusesAPortThatSomebodyListensOn) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  ASSERT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_THROW(PortReservation{ntohs(address.sin_port)}, ValueError);
}

TEST(PortReservation, RefusesNumbersThatAreNoPorts) {
  EXPECT_THROW(PortReservation{-1}, ValueError);
  EXPECT_THROW(PortReservation{65536}, ValueError);
}

}  // namespace
}  // namespace zeroshard
