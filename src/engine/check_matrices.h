#pragma once
#include <optional>
#include <span>

#include "layout/unit_layout.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Returns the dtype in which ranks send each other pieces of matrices and of the matrices' updates (see MatrixUpdate).
// It is fp32 if a param group of Muon has ns_gram. Otherwise it is bf16, because the Newton-Schulz iteration of Muon
// then rounds its input to bf16 anyway. Returns nothing for an optimizer that does not need whole matrices, such as any
// external one.
std::optional<DType> matrix_dtype(const EngineOptions& options);

// For an optimizer that needs whole matrices, throws ValueError if a parameter that is to be updated as a matrix has
// fewer than two dimensions. Also throws ValueError if there are trained parameters, but none of them is updated as a
// matrix. Does nothing for other optimizers.
void check_matrices(std::span<const UnitLayout> units, const EngineOptions& options);

}  // namespace zeroshard
