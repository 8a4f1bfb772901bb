#include "layout/unit_layout.h"

#include <map>
#include <tuple>

#include "base/check.h"

namespace zeroshard {

int64_t ParamSpec::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t UnitLayout::numel() const {
  int64_t sum = 0;
  for (const ParamSpec& param : params) sum += param.numel();
  return sum;
}

int64_t UnitLayout::full_bytes() const {
  int64_t sum = 0;
  for (const FlatGroup& group : groups) sum += group.layout.padded_numel() * element_size(group.dtype);
  return sum;
}

int64_t UnitLayout::shard_bytes() const {
  int64_t sum = 0;
  for (const FlatGroup& group : groups) sum += group.layout.shard_numel() * element_size(group.dtype);
  return sum;
}

UnitLayout make_unit_layout(std::string name, std::vector<ParamSpec> params, int world_size, int parts) {
  // The key is (frozen, dtype, is_matrix, is_coded). `frozen` comes first, so that trainable groups come first.
  std::map<std::tuple<bool, DType, bool, bool>, std::vector<size_t>> by_kind;
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamSpec& param = params[i];
    ZS_CHECK(!param.requires_grad || is_floating_point(param.dtype), "parameter '", param.name(),
             "' requires a gradient and is of a dtype of ", element_size(param.dtype),
             " bytes that cannot be trained (complex, 8-bit): only fp32, bf16 and fp16 can");
    ZS_CHECK(!param.requires_grad || param.dtype != DType::kFloat64, "parameter '", param.name(),
             "' is fp64 and requires a gradient: only fp32, bf16 and fp16 can be trained. Convert it, or freeze it");
    const bool trains = param.requires_grad;
    by_kind[{!trains, param.dtype, trains && param.is_matrix, trains && param.is_coded}].push_back(i);
  }
  UnitLayout unit{std::move(name), std::move(params), {}};
  for (auto& [kind, indices] : by_kind) {
    std::vector<int64_t> numels;
    for (const size_t i : indices) numels.push_back(unit.params[i].numel());
    const auto [is_frozen, dtype, is_matrix, is_coded] = kind;
    const ShardLayout layout(numels, world_size, is_coded ? kScaledNumel : 1, parts);
    unit.groups.push_back({dtype, !is_frozen, std::move(indices), layout, is_matrix, is_coded});
  }
  return unit;
}

}  // namespace zeroshard
