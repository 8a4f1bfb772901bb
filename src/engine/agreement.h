#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "comm/comm.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Checks that every rank has the same named values in the same order. Otherwise throws ValueError on every rank with
// the first difference, both values and the ranks that have them. `what` is "configuration" or the like. Collective;
// takes one small exchange if all agree.
void check_agreement(Comm& comm, const std::string& what, const NamedValues& values);

}  // namespace zeroshard
