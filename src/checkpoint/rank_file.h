#pragma once
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "file/durable.h"

namespace zeroshard {

// "rank-00012.safetensors"
std::string rank_file_name(int rank);

// Writes the slices of `request` to a new safetensors file, durably, and describes what lies where with which checksum.
// Slices without elements are only described. Throws IoError, and what SaveRequest::wait_for_data throws.
RankTable write_rank_file(Directory& directory, const std::string& name, const SaveRequest& request);

}  // namespace zeroshard
