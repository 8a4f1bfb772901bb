#pragma once
#include <optional>
#include <span>

#include "layout/unit_layout.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns the dtype in which ranks exchange the momenta of matrices. It is bf16 if all param groups round momenta to
// bf16 anyway. Returns nothing for an optimizer that does not need whole matrices.
std::optional<DType> matrix_dtype(const EngineOptions& options);

// If the optimizer needs whole matrices, throws ValueError if no trained parameter is one, or if a parameter that shall
// be updated as a matrix has fewer than two dimensions.
void check_matrices(std::span<const UnitLayout> units, const EngineOptions& options);

}  // namespace zeroshard
