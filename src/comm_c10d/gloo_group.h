#pragma once
#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

// For C++ programs without Python.
namespace zeroshard {

// The store that MASTER_ADDR and MASTER_PORT name; rank 0 serves it. On a loopback address (also when MASTER_ADDR is
// unset) it listens only there, unlike c10d's own. Throws ValueError for wrong variables.
c10::intrusive_ptr<c10d::Store> make_env_store(int rank, int world_size, int64_t timeout_ms);

// Whether MASTER_ADDR is a loopback address or unset.
bool meets_on_loopback();

// Returns once a process listens on 127.0.0.1:port, or after `timeout`.
void await_listener_on_loopback(uint16_t port, std::chrono::milliseconds timeout);

// A Gloo group over `store`. Connections are made on the interface GLOO_SOCKET_IFNAME if set, on loopback when
// MASTER_ADDR is a loopback address or unset or LOCAL_WORLD_SIZE says that all ranks are on this host, else on the
// interface that leads to the host MASTER_ADDR. Throws CommError where no interface does.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, int64_t timeout_ms = 1'800'000);

}  // namespace zeroshard
