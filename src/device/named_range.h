#pragma once
#include <ATen/record_function.h>

#include <string_view>

#include "base/format.h"

namespace zeroshard {

// A range of host time with a name in torch.profiler and, through torch.autograd.profiler.emit_nvtx(), in NVIDIA's
// tools. The name says what the engine does and for which unit. Without a profiler it costs some nanoseconds.
class NamedRange {
 public:
  explicit NamedRange(std::string_view action, std::string_view unit = {}) {
    if (guard_.isActive()) guard_.before(concat("zeroshard: ", action, unit.empty() ? "" : " ", unit));
  }

 private:
  at::RecordFunction guard_{at::RecordScope::USER_SCOPE};
};

}  // namespace zeroshard
