#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "layout/shard_layout.h"
#include "zeroshard/dtype.h"

namespace zeroshard {

// The properties of a parameter that decide its layout. `names` has all names of a tied parameter.
struct ParamSpec {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  bool requires_grad = true;
  bool is_matrix = false;  // whether its optimizer updates whole matrices (see MatrixShape)
  bool is_coded = false;   // whether its moments are stored in 8 bits

  int64_t numel() const;
  const std::string& name() const { return names.front(); }
};

// Returns whether the moments of a parameter of `numel` elements are stored as 8-bit codes. `moment_dtype` is the
// configured dtype of moments.
inline bool has_coded_moments(int64_t numel, DType moment_dtype) {
  return moment_dtype == kCodes && numel >= kLeastCodedNumel;
}

// The parameters of a unit that share a flat buffer. All have the same dtype and requires_grad. Trainable parameters of
// a group also have the same is_matrix and is_coded. A frozen group has false for both, whatever its parameters have.
struct FlatGroup {
  DType dtype;
  bool requires_grad;
  std::vector<size_t> params;  // indices into UnitLayout::params, in ascending order
  ShardLayout layout;
  bool is_matrix = false;
  bool is_coded = false;  // if true, parameters begin at multiples of kScaledNumel
};

// The parameters that are gathered and freed together. Gradients are reduced group by group. Usually a unit is one
// transformer block.
struct UnitLayout {
  std::string name;
  std::vector<ParamSpec> params;
  std::vector<FlatGroup> groups;  // sorted: trainable before frozen, then by DType, is_matrix and is_coded

  int64_t numel() const;
  int64_t full_bytes() const;   // bytes of the gathered unit, padding included
  int64_t shard_bytes() const;  // bytes of one rank's shards, in the dtypes of the parameters
};

// Identifies a parameter of a model by the index of its unit, and by its index in UnitLayout::params.
struct ParamPlace {
  size_t unit, param;
  bool operator==(const ParamPlace&) const = default;
};

// Groups trainable parameters by (dtype, is_matrix, is_coded), and frozen parameters by dtype alone. In each group the
// parameters keep their order. `world_size` and `parts` are those of ShardLayout. Throws ValueError if the dtype of a
// trainable parameter is not fp32, bf16 or fp16.
UnitLayout make_unit_layout(std::string name, std::vector<ParamSpec> params, int world_size, int parts = 1);

}  // namespace zeroshard
