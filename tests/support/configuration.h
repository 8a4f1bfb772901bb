#pragma once
#include <string_view>

#include "zeroshard/config.h"

namespace zeroshard::testing {

// Of so many ranks; the batch keys may be missing.
inline ConfigContext ranks(int world_size) {
  ConfigContext context;
  context.world_size = world_size;
  context.default_micro_batch_size = 1;
  return context;
}

inline ParsedConfig configuration(std::string_view json, int world_size = 1) {
  return parse_config(json, ranks(world_size));
}

}  // namespace zeroshard::testing
