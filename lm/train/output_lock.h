#pragma once
#include <vector>

#include "file/directory_lock.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Reserves train.output and train.checkpoints.folder for this job. Collective. Returns the locks on rank 0, and nothing
// on the other ranks. Throws IoError on every rank if another job has reserved one of the folders.
std::vector<DirectoryLock> lock_output(const TrainOptions& options, World& world);

}  // namespace zeroshard
