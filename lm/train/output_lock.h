#pragma once
#include <vector>

#include "file/directory_lock.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Reserves train.output and train.checkpoints.folder for this job, and creates them if they are missing. Collective.
// Returns the locks on rank 0, and an empty list on the other ranks. Throws IoError on every rank if another job has
// reserved one of the folders, or if a folder cannot be used.
std::vector<DirectoryLock> lock_output(const TrainOptions& options, World& world);

}  // namespace zeroshard
