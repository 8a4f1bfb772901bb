#pragma once
#include <string>
#include <utility>
#include <vector>

#include "layout/unit_layout.h"

namespace zeroshard {

inline UnitLayout unit(const std::string& name, const std::vector<std::pair<std::vector<int64_t>, DType>>& params,
                       int world_size, size_t frozen = SIZE_MAX) {
  std::vector<ParamSpec> specs;
  for (size_t i = 0; i < params.size(); ++i) {
    specs.push_back({{name + "." + std::to_string(i)}, params[i].first, params[i].second, i != frozen});
  }
  return make_unit_layout(name, std::move(specs), world_size);
}

}  // namespace zeroshard
