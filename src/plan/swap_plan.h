#pragma once
#include <span>
#include <vector>

#include "file/chunk_layout.h"
#include "memory/ledger.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// Returns the groups whose optimizer states are in files, unit by unit, and how many elements of each have their states
// there. If an element has a master weight, that is the element's first value in the file. The moments follow it.
std::vector<ChunkGroup> groups_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// Returns the bytes of the memory through which values in files are read and written: buffers for at most
// `buffer_count` chunks in all, and the checksums of the files. Returns 0 if there are no values in files.
int64_t swap_memory_bytes(std::span<const ChunkGroup> groups, int buffer_count);

// Returns the groups whose parameters are in files, unit by unit. Four bytes of parameters count as one fp32 value.
std::vector<ChunkGroup> parameters_in_file(std::span<const UnitLayout> units,
                                           std::span<const UnitPlacement> placements);
// Returns the groups whose reduced gradients are in files, unit by unit. Four bytes of gradients count as one fp32
// value.
std::vector<ChunkGroup> gradients_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
// Returns how many chunks of parameters are in memory at a time. There are enough chunks for options.parameter_buffers
// buffers. A buffer consists of whole chunks, and has room for the longest shard, or for options.parameter_buffer_numel
// elements if the shard is longer.
int parameter_chunks(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                     const PlanOptions& options);

}  // namespace zeroshard
