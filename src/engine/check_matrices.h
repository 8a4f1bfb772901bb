#pragma once
#include <optional>
#include <span>

#include "layout/unit_layout.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// In which momenta of matrices travel: bf16 where all param groups round them to that at once; unset for an optimizer
// without whole matrices.
std::optional<DType> matrix_dtype(const EngineOptions& options);

// Throws ValueError where the optimizer needs whole matrices, and there are none, or a parameter is none.
void check_matrices(std::span<const UnitLayout> units, const EngineOptions& options);

}  // namespace zeroshard
