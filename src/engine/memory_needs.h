#pragma once
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"

namespace zeroshard {

// ": each rank needs ... bytes": what a rank holds of a model, `planned`, and its largest parameter, for the error that
// there is no memory for it.
std::string memory_needs(const std::vector<UnitLayout>& layouts, const Bytes& planned);

}  // namespace zeroshard
