#pragma once
#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "file/durable.h"

namespace zeroshard {

// "rank-00012.safetensors"
std::string rank_file_name(int rank);

// Writes `slices` to a new safetensors file, durably, and describes what lies where with which checksum. Slices without
// elements are only described. `wait_for_data` as in SaveRequest. Throws IoError, and what that throws.
RankTable write_rank_file(Directory& directory, const std::string& name, std::span<const StateSlice> slices,
                          const std::function<void(const void* end)>& wait_for_data = {});

}  // namespace zeroshard
