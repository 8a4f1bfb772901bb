#pragma once
#include <functional>
#include <memory>
#include <string>

#include "activations/activation_keeper.h"
#include "comm/comm.h"
#include "memory/ledger.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Creates the keeper that zeroshard.offload.activations asks for. Returns null for "none", and for "cpu" if the device
// is the CPU. If tensors go to files, the call is collective over comm.host(). If a rank cannot create its files, every
// rank throws ConfigError with the number of that rank, its directory and the reason. The ledger counts the buffers of
// the files. If a file fails later, `on_failure` is called once, before the error is thrown.
std::unique_ptr<ActivationKeeper> make_activation_keeper(const EngineOptions& options, Comm& comm, Ledger& ledger,
                                                         std::function<void(const std::string& message)> on_failure);

}  // namespace zeroshard
