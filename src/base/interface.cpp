#include "base/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/format.h"
#include "base/host_name.h"
#include "base/shown_text.h"
#include "base/unique_fd.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr uint16_t kAnyPort = 9;  // connect() of a UDP socket needs a port, but sends nothing
constexpr const char *kWayOut = "; set GLOO_SOCKET_IFNAME to the interface that leads to the other hosts",
                     // A reserved address (RFC 5737) that no host has, so only the default route leads to it.
    *kElsewhere = "192.0.2.1";

sockaddr_storage stored(const sockaddr* address, size_t size) {
  sockaddr_storage result{};
  std::memcpy(&result, address, std::min(size, sizeof result));
  return result;
}

size_t size_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// Converts ::ffff:a.b.c.d, the form of an IPv4 address in an IPv6 socket, to plain IPv4. Returns other addresses
// unchanged.
sockaddr_storage plain(const sockaddr_storage& address) {
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return address;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6.sin6_port;
  std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, sizeof v4.sin_addr);
  return stored(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
}

// Returns the source address that this host would use for packets to the address `to`. If there is none, for example
// because no route leads to `to`, returns nothing and sets errno.
std::optional<sockaddr_storage> source_towards(const sockaddr_storage& to) {
  const UniqueFd fd(::socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), static_cast<socklen_t>(size_of(to))) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return {};
  return own;
}

struct Interface {
  std::string name;
  bool loopback;
  sockaddr_storage address;
};

// Lists the interfaces that are up. An interface is in the list once for each of its IPv4 and IPv6 addresses.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno("cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const size_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    result.push_back({one->ifa_name, (one->ifa_flags & IFF_LOOPBACK) != 0, stored(one->ifa_addr, size)});
  }
  return result;
}

bool same_address(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  const auto &v6 = reinterpret_cast<const sockaddr_in6&>(a), &other = reinterpret_cast<const sockaddr_in6&>(b);
  return std::memcmp(&v6.sin6_addr, &other.sin6_addr, sizeof v6.sin6_addr) == 0;
}

bool is_loopback_address(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

bool links_hosts(const Interface& one) {
  const bool link_local = one.address.ss_family == AF_INET6 &&
                          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(one.address).sin6_addr);
  return !one.loopback && !link_local;
}

std::vector<sockaddr_storage> resolve_host(const std::string& host) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0)
    throw CommError(concat("the host ", shown_text(host), " cannot be resolved: ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<sockaddr_storage> result;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next)
    if (one->ai_family == AF_INET || one->ai_family == AF_INET6)
      result.push_back(stored(one->ai_addr, one->ai_addrlen));
  return result;
}

sockaddr_storage elsewhere() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kAnyPort);
  ::inet_pton(AF_INET, kElsewhere, &address.sin_addr);
  return stored(reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

// Returns the interface by which other hosts reach this host, as interface_towards() says. `host` is a name of this
// host, and resolves to `address` on this host.
std::string interface_to_others(const std::string& host, const sockaddr_storage& address) {
  const std::vector<Interface> all = interfaces();
  if (const auto source = source_towards(elsewhere())) {
    for (const Interface& one : all)
      if (links_hosts(one) && same_address(one.address, *source)) return one.name;
  }
  std::vector<std::string> names;
  for (const Interface& one : all)
    if (links_hosts(one) && std::find(names.begin(), names.end(), one.name) == names.end()) names.push_back(one.name);
  if (names.size() == 1) return names.front();
  if (!names.empty())
    throw CommError(
        concat("the host ", shown_text(host), " has the address ", address_text(address),
               " here, which is this host itself, and this host has no default route. Any of its interfaces ",
               some_of(names), " may lead to the other hosts", kWayOut));
  for (const Interface& one : all)
    if (one.loopback) return one.name;
  throw CommError(concat("this host has no network interface that is up", kWayOut));
}

}  // namespace

std::string address_text(const sockaddr_storage& address) {
  const sockaddr_storage own = plain(address);
  char text[INET6_ADDRSTRLEN] = "?";
  if (own.ss_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(own).sin_addr, text, sizeof text);
  else
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(own).sin6_addr, text, sizeof text);
  return text;
}

std::string interface_with(const sockaddr_storage& address) {
  const sockaddr_storage wanted = plain(address);
  const std::vector<Interface> all = interfaces();
  for (const Interface& one : all)
    if (same_address(one.address, wanted)) return one.name;
  if (!is_loopback_address(wanted)) return {};
  // 127.0.1.1 is not the address of any interface, but the loopback interface answers for all of 127.0.0.0/8.
  for (const Interface& one : all)
    if (one.loopback) return one.name;
  return {};
}

bool is_this_host(const std::string& host) {
  const std::string own = host_name();
  if (host == "localhost" || host == own || host == own.substr(0, own.find('.'))) return true;
  try {
    for (const sockaddr_storage& address : resolve_host(host))
      if (!interface_with(address).empty()) return true;
  } catch (const CommError&) {  // the name cannot be resolved, but ssh might know it from its configuration
  }
  return false;
}

std::string interface_towards(const std::string& host) {
  std::string reasons;
  for (sockaddr_storage to : resolve_host(host)) {
    reinterpret_cast<sockaddr_in&>(to).sin_port = htons(kAnyPort);  // the port has the same position in both families
    const auto source = source_towards(to);
    if (!source) {
      reasons += concat(reasons.empty() ? "" : ", ", address_text(to), ": ", std::strerror(errno));
      continue;
    }
    const std::string name = is_loopback_address(*source) ? "" : interface_with(*source);
    return name.empty() ? interface_to_others(host, to) : name;
  }
  throw CommError(concat("no interface leads to the host ", shown_text(host), " (", reasons, ")", kWayOut));
}

}  // namespace zeroshard
