#pragma once
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

// Creates Gloo process groups, for C++ programs without Python.
namespace zeroshard {

// Creates the store that MASTER_ADDR and MASTER_PORT name; rank 0 serves it. On a loopback address (also if MASTER_ADDR
// is unset) it listens only there, unlike c10d's own store. Throws ValueError for wrong variables.
c10::intrusive_ptr<c10d::Store> make_env_store(int rank, int world_size, int64_t timeout_ms);

// Returns whether MASTER_ADDR is a loopback address or unset.
bool meets_on_loopback();
// Returns whether the variables name one interface, or an address, by which a Gloo group of this rank can reach other
// hosts.
bool reaches_other_hosts() noexcept;

// Returns when a process listens on 127.0.0.1:port, or after `timeout`.
void await_listener_on_loopback(uint16_t port, std::chrono::milliseconds timeout);

// Creates a Gloo group over `store`. It connects on the interface GLOO_SOCKET_IFNAME if that is set. Otherwise it uses
// loopback if MASTER_ADDR is a loopback address or unset, or if LOCAL_WORLD_SIZE says that all ranks are on this host.
// Otherwise it uses the interface that leads to the host MASTER_ADDR. Throws CommError if there is no such interface.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, int64_t timeout_ms = 1'800'000);

// Does the same under the prefix `name`, on its own thread and with its own connection to the store, because Gloo
// cannot be interrupted while it connects ranks. The thread is abandoned if the result is not wanted any more.
std::future<c10::intrusive_ptr<c10d::ProcessGroup>> connect_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                                       const std::string& name, int rank,
                                                                       int world_size, int64_t timeout_ms);

}  // namespace zeroshard
