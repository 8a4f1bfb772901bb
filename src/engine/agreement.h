#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "comm/comm.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Checks that every rank has the same named values in the same order. Otherwise throws ValueError on every rank. The
// message has the first difference between rank 0 and the lowest rank that differs from it. `what` names the values in
// the message, for example "configuration". Collective. If all ranks agree, they exchange only 16 bytes each.
void check_agreement(Comm& comm, const std::string& what, const NamedValues& values);

}  // namespace zeroshard
