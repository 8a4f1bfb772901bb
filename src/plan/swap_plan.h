#pragma once
#include <span>
#include <vector>

#include "file/chunk_layout.h"
#include "memory/ledger.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// Returns the groups with optimizer states in files, and how many of their elements are there, unit by unit. An
// element's master weight comes first, if there is one, then its moments.
std::vector<ChunkGroup> groups_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// Returns the memory through which states in files are read and written; 0 if no states are in files.
int64_t swap_memory_bytes(std::span<const ChunkGroup> groups, int buffer_count);

// Returns the groups with parameters in files, unit by unit. Their bytes are stored as fp32 values, one per four bytes.
std::vector<ChunkGroup> parameters_in_file(std::span<const UnitLayout> units,
                                           std::span<const UnitPlacement> placements);
// Returns the groups with reduced gradients in files, in the same way.
std::vector<ChunkGroup> gradients_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// Returns how many chunks of parameters are in memory at a time. They hold options.parameter_buffers buffers. Each
// buffer is as large as the longest shard, but has at most options.parameter_buffer_numel elements.
int parameter_chunks(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                     const PlanOptions& options);

}  // namespace zeroshard
