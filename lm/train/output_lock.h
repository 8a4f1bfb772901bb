#pragma once
#include <vector>

#include "file/directory_lock.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Reserves train.output and train.checkpoints.folder for this job. Collective: rank 0 holds the locks, the other ranks
// hold none. Throws on every rank if another job has one of them.
std::vector<DirectoryLock> lock_output(const TrainOptions& options, World& world);

}  // namespace zeroshard
