#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "comm/comm.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Checks that every rank has the same named values, in the same order. Throws ValueError on every rank otherwise,
// naming the first difference, both values and the ranks that have them: `what` is "configuration" or the like.
// Collective; one small exchange when all agree.
void check_agreement(Comm& comm, const std::string& what, const NamedValues& values);

}  // namespace zeroshard
