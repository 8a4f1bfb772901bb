#pragma once
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "file/durable.h"

namespace zeroshard {

// Returns "rank-00012.safetensors" for rank 12.
std::string rank_file_name(int rank);

// Writes the slices of `request` to a new safetensors file. The contents are durable on return, but the name only after
// Directory::sync(). Returns the table of the file. The caller must set its RankTable::state. The table also lists
// slices without elements, which take no bytes. Calls SliceData::end_reading(), also after an error. Throws IoError,
// and the errors of SliceData::read() and SaveRequest::wait_for_data.
RankTable write_rank_file(Directory& directory, const std::string& name, const SaveRequest& request);

}  // namespace zeroshard
