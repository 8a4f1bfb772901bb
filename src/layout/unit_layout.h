#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "layout/shard_layout.h"
#include "zeroshard/dtype.h"

namespace zeroshard {

// The properties of a parameter that the layout needs. `names` has all names of a tied parameter.
struct ParamSpec {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  bool requires_grad = true;
  bool is_matrix = false;  // its optimizer updates it as a whole matrix
  bool is_coded = false;   // its moments are stored in 8 bits

  int64_t numel() const;
  const std::string& name() const { return names.front(); }
};

// Returns whether the moments of a parameter are codes if moments are to have this dtype. Small parameters keep fp32
// moments.
inline bool has_coded_moments(int64_t numel, DType moment_dtype) {
  return moment_dtype == kCodes && numel >= kLeastCodedNumel;
}

// The parameters of a unit that share a flat buffer. All have the same dtype, requires_grad, is_matrix and is_coded.
struct FlatGroup {
  DType dtype;
  bool requires_grad;
  std::vector<size_t> params;  // indices into UnitLayout::params, in order
  ShardLayout layout;
  bool is_matrix = false;
  bool is_coded = false;  // then parameters begin at multiples of kScaledNumel
};

// The parameters that are gathered, reduced and freed together: normally one transformer block.
struct UnitLayout {
  std::string name;
  std::vector<ParamSpec> params;
  std::vector<FlatGroup> groups;  // trainable groups first, then by dtype

  int64_t numel() const;
  int64_t full_bytes() const;   // bytes of the gathered unit, padding included
  int64_t shard_bytes() const;  // bytes of one rank's shards in the parameters' own dtypes
};

// Groups `params` by (requires_grad, dtype, is_matrix, is_coded), keeping their order. Throws ValueError for a
// trainable parameter whose dtype is not floating-point.
UnitLayout make_unit_layout(std::string name, std::vector<ParamSpec> params, int world_size);

}  // namespace zeroshard
