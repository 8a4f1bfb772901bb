#pragma once
#include <span>
#include <vector>

#include "file/chunk_layout.h"
#include "memory/ledger.h"
#include "placement/placement.h"

namespace zeroshard {

// The groups whose optimizer states lie in files, with the elements of which that is so, unit after unit: the master
// weight of an element comes first, if there is one, then its moments.
std::vector<ChunkGroup> groups_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// The memory through which they are read and written. 0 where no states are in files.
int64_t swap_memory_bytes(std::span<const ChunkGroup> groups, int buffer_count);

}  // namespace zeroshard
