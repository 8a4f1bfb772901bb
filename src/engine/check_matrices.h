#pragma once
#include <optional>
#include <span>

#include "layout/unit_layout.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns the dtype in which ranks exchange the momenta of whole matrices. It is fp32 if a param group with use_muon
// has ns_gram. Otherwise it is bf16, because the Newton-Schulz iteration then rounds momenta to bf16 anyway. Returns
// nothing for an optimizer that does not need whole matrices.
std::optional<DType> matrix_dtype(const EngineOptions& options);

// For an optimizer that needs whole matrices, throws ValueError if there are trained parameters but none of them is
// updated as a matrix, or if a parameter that is to be updated as a matrix has fewer than two dimensions.
void check_matrices(std::span<const UnitLayout> units, const EngineOptions& options);

}  // namespace zeroshard
