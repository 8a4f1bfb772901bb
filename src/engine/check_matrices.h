#pragma once
#include <optional>
#include <span>

#include "layout/unit_layout.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns the dtype in which ranks exchange the momenta of matrices. It is bf16 if all param groups round momenta to
// bf16 anyway. Unset for an optimizer that does not need whole matrices.
std::optional<DType> matrix_dtype(const EngineOptions& options);

// Throws ValueError if the optimizer needs whole matrices, and there are none or one of those parameters is not a
// matrix.
void check_matrices(std::span<const UnitLayout> units, const EngineOptions& options);

}  // namespace zeroshard
