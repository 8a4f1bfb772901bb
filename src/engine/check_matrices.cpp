#include "engine/check_matrices.h"

#include <algorithm>

#include "base/check.h"
#include "base/shape_text.h"

namespace zeroshard {

std::optional<DType> matrix_dtype(const EngineOptions& options) {
  if (options.optimizer != OptimizerConfig::Type::kMuon || !options.external_optimizer.empty()) return std::nullopt;
  const bool is_wide = std::ranges::any_of(
      options.param_groups, [](const ParamGroupOptions& group) { return group.use_muon && group.ns_gram; });
  return is_wide ? DType::kFloat32 : DType::kBFloat16;
}

void check_matrices(std::span<const UnitLayout> units, const EngineOptions& options) {
  if (!matrix_dtype(options)) return;
  int64_t matrices = 0, trained = 0;
  for (const UnitLayout& unit : units) {
    for (const ParamSpec& param : unit.params) {
      trained += param.requires_grad;
      matrices += param.is_matrix;
      ZS_CHECK(!param.is_matrix || param.shape.size() >= 2, "Muon orthogonalises matrices, and '", param.name(),
               "' has the shape ", shape_text(param.shape),
               ": put it into a param group with use_muon false, which AdamW updates");
    }
  }
  ZS_CHECK(matrices > 0 || trained == 0, "Muon has no matrix to orthogonalise: none of the ", trained,
           " parameters that are trained has two dimensions and a name without 'embed' and 'lm_head' (use_muon): ",
           "choose the optimizer AdamW");
}

}  // namespace zeroshard
