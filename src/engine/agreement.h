#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "comm/comm.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Throws ValueError on every rank unless every rank has the same named values in the same order. The message has the
// first difference between rank 0 and the lowest rank that differs from it. `what` names the values in the message, for
// example "configuration". Collective. Each rank sends a hash and a length (16 bytes), and sends the values only if a
// hash or a length differs among ranks.
void check_agreement(Comm& comm, const std::string& what, const NamedValues& values);

}  // namespace zeroshard
