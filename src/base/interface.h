#pragma once
#include <sys/socket.h>

#include <string>

namespace zeroshard {

// Returns an address as a text for messages, such as "10.0.0.1". An IPv4 address in the form of IPv6 is shown as IPv4.
std::string address_text(const sockaddr_storage& address);
// Returns the name of this host's network interface that has `address`. If no interface has it, but `address` is a
// loopback address such as 127.0.1.1, returns the loopback interface, because that interface answers for all loopback
// addresses. Returns "" in all other cases.
std::string interface_with(const sockaddr_storage& address);

// Returns whether `host`, a name or an address, means this machine. This is so if `host` is "localhost" or this
// machine's own name, with or without the domain. Otherwise `host` must resolve to one of this machine's addresses. A
// name that cannot be resolved gives false and no exception.
bool is_this_host(const std::string& host);

// Returns the name of the network interface by which this host reaches `host`. Sends nothing to `host`, but may ask a
// name server.
//
// This host might send to `host` from a loopback address, or from an address that no interface has. Then `host` is
// taken as a name of this host itself. (Debian, for example, resolves a host's own name to 127.0.1.1.) The function
// then returns the interface of the default route, because other hosts reach this host by that interface. Without a
// default route it returns the only interface that links to other hosts. If no interface links to other hosts, it
// returns the loopback interface.
//
// Throws CommError if `host` cannot be resolved, if no route leads to it, or if no single interface can be chosen.
// Except in the first case, the message says that GLOO_SOCKET_IFNAME can name the interface.
std::string interface_towards(const std::string& host);

}  // namespace zeroshard
