#pragma once
#include <ATen/record_function.h>

#include <string_view>

#include "base/format.h"

namespace zeroshard {

// A range of host time that torch.profiler shows with a name. NVIDIA's tools show it through
// torch.autograd.profiler.emit_nvtx(). The name consists of what the engine does (`action`) and, if given, the unit.
// Without a profiler, a range costs some nanoseconds.
class NamedRange {
 public:
  explicit NamedRange(std::string_view action, std::string_view unit = {}) {
    if (guard_.isActive()) guard_.before(concat("zeroshard: ", action, unit.empty() ? "" : " ", unit));
  }

 private:
  at::RecordFunction guard_{at::RecordScope::USER_SCOPE};
};

}  // namespace zeroshard
