#pragma once
#include <sys/socket.h>

#include <string>

namespace zeroshard {

// Returns a text for messages: "10.0.0.1". An IPv4 address in the form of IPv6 is shown as IPv4.
std::string address_text(const sockaddr_storage& address);
// Returns the name of this host's network interface that has `address`; "" if none has it.
std::string interface_with(const sockaddr_storage& address);

// Returns whether `host`, a name or an address, is this machine: its own name, or a name of one of its addresses.
bool is_this_host(const std::string& host);

// Returns the name of the network interface by which this host reaches `host`. If `host` is this host, it returns the
// interface of the default route, else the only interface, else loopback. (Debian gives a host's own name the address
// 127.0.1.1.) Sends nothing. Throws CommError if there is no such interface; the message has the addresses to which
// `host` resolved, and says that GLOO_SOCKET_IFNAME can name the interface.
std::string interface_towards(const std::string& host);

}  // namespace zeroshard
