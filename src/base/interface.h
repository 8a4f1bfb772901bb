#pragma once
#include <sys/socket.h>

#include <string>

namespace zeroshard {

// Returns an address as a text for messages, such as "10.0.0.1". An IPv4 address in the form of IPv6 is shown as IPv4.
std::string address_text(const sockaddr_storage& address);
// Returns the name of this host's network interface that has `address`. Returns "" if no interface has it.
std::string interface_with(const sockaddr_storage& address);

// Returns whether `host`, a name or an address, means this machine. It does if it is this machine's own name, or
// belongs to one of this machine's addresses.
bool is_this_host(const std::string& host);

// Returns the name of the network interface by which this host reaches `host`. If `host` is this host itself, returns
// the interface of the default route. If there is no default route, returns the only interface that links to other
// hosts, and if there is none, loopback. (Debian resolves a host's own name to 127.0.1.1.) Sends nothing. Throws
// CommError if no interface can be chosen. The message has the addresses to which `host` resolved, and says that
// GLOO_SOCKET_IFNAME can name the interface.
std::string interface_towards(const std::string& host);

}  // namespace zeroshard
