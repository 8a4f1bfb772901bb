#pragma once
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

// Creates Gloo process groups, and the store by which the ranks of C++ programs meet.
namespace zeroshard {

// Creates the store that MASTER_ADDR and MASTER_PORT name. Rank 0 serves it, unless torchrun says in
// TORCHELASTIC_USE_AGENT_STORE that its agent does. If the address is a loopback address, or if MASTER_ADDR is unset,
// the store listens only on loopback, unlike a store that c10d itself creates. Throws ValueError if MASTER_PORT is not
// a port. Throws CommError if rank 0 cannot listen on loopback, or if another rank does not reach the store within
// `timeout_ms`. If rank 0 cannot listen on another address, it throws c10::Error.
c10::intrusive_ptr<c10d::Store> make_env_store(int rank, int world_size, int64_t timeout_ms);

// Returns whether MASTER_ADDR is a loopback address or unset.
bool meets_on_loopback();
// Returns whether this rank knows exactly one interface by which a Gloo group can reach other hosts. If
// GLOO_SOCKET_IFNAME is set, this is true if the variable has only one name, even if no interface has that name. If
// GLOO_SOCKET_IFNAME is unset, this is true if an interface leads to MASTER_ADDR, and MASTER_ADDR is not a loopback
// address.
bool reaches_other_hosts() noexcept;

// Returns when a process listens on 127.0.0.1:port, but after `timeout` at the latest. Returns immediately if it cannot
// find out whether a process listens.
void await_listener_on_loopback(uint16_t port, std::chrono::milliseconds timeout);

// Creates a Gloo group over `store`, and returns when all ranks are connected. The group connects on the interface
// GLOO_SOCKET_IFNAME if that is set. If not, it uses loopback if MASTER_ADDR is a loopback address or unset, or if
// LOCAL_WORLD_SIZE equals WORLD_SIZE, so that all ranks are on this host. In all other cases it uses the interface that
// leads to the host MASTER_ADDR. Throws CommError if there is no such interface.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, int64_t timeout_ms = 1'800'000);

// Does the same as make_gloo_group(), but on a new thread, because Gloo cannot be interrupted while it connects ranks.
// The thread has its own connection to the store, and its keys have the prefix `name`. If the caller drops the future,
// the thread goes on alone.
std::future<c10::intrusive_ptr<c10d::ProcessGroup>> connect_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                                       const std::string& name, int rank,
                                                                       int world_size, int64_t timeout_ms);

}  // namespace zeroshard
