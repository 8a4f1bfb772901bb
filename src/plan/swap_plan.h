#pragma once
#include <span>
#include <vector>

#include "file/chunk_layout.h"
#include "memory/ledger.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// The groups whose optimizer states lie in files, with the elements of which that is so, unit after unit: the master
// weight of an element comes first, if there is one, then its moments.
std::vector<ChunkGroup> groups_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// The memory through which they are read and written. 0 where no states are in files.
int64_t swap_memory_bytes(std::span<const ChunkGroup> groups, int buffer_count);

// The groups whose parameters lie in files, unit after unit. Their bytes are stored as fp32 values, one for each four.
std::vector<ChunkGroup> parameters_in_file(std::span<const UnitLayout> units,
                                           std::span<const UnitPlacement> placements);
// The groups whose reduced gradients lie in files, in the same way.
std::vector<ChunkGroup> gradients_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// The chunks of parameters that are in memory at a time: as many as hold options.parameter_buffers of the longest
// shard, or of options.parameter_buffer_numel elements.
int parameter_chunks(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                     const PlanOptions& options);

}  // namespace zeroshard
