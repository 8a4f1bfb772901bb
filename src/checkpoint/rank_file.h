#pragma once
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "file/durable.h"

namespace zeroshard {

// Returns "rank-00012.safetensors".
std::string rank_file_name(int rank);

// Writes the slices of `request` durably to a new safetensors file. Returns the place and the checksums of each slice.
// A slice without elements is described, too, but takes no place. Throws IoError, and the errors of
// SaveRequest::wait_for_data.
RankTable write_rank_file(Directory& directory, const std::string& name, const SaveRequest& request);

}  // namespace zeroshard
