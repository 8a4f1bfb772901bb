#pragma once
#include <functional>
#include <memory>
#include <string>

#include "activations/activation_keeper.h"
#include "comm/comm.h"
#include "memory/ledger.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Creates the keeper that zeroshard.offload.activations asks for; null if tensors stay on the device. Collective over
// `comm`: if a rank cannot create its file, every rank throws ConfigError with rank, directory and reason. The ledger
// counts the buffers. `on_failure` is called once for a file that fails, before the error is thrown.
std::unique_ptr<ActivationKeeper> make_activation_keeper(const EngineOptions& options, Comm& comm, Ledger& ledger,
                                                         std::function<void(const std::string& message)> on_failure);

}  // namespace zeroshard
