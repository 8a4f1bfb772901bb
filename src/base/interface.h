#pragma once
#include <sys/socket.h>

#include <string>

namespace zeroshard {

// A text for messages: "10.0.0.1". An IPv4 address in the form of IPv6 is shown as IPv4.
std::string address_text(const sockaddr_storage& address);
// The name of this host's network interface that has `address`; "" if none has.
std::string interface_with(const sockaddr_storage& address);

// Whether `host`, a name or an address, is this machine: its own name, or one that resolves to an address of its own.
bool is_this_host(const std::string& host);

// The name of the network interface by which this host reaches `host`. Debian gives a host's own name the address
// 127.0.1.1: if `host` is this host, the interface that leads to other hosts is that of the default route, else the
// only one, else loopback where there is no other. Sends nothing. Throws CommError where none of these exists; it says
// to which addresses `host` resolved, and that GLOO_SOCKET_IFNAME can name the interface.
std::string interface_towards(const std::string& host);

}  // namespace zeroshard
