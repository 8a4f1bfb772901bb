#pragma once
#include <vector>

#include "file/directory_lock.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Collective. Keeps train.output and train.checkpoints.folder for this job: rank 0 has the locks, and the others
// nothing. Throws on every rank when another job has one.
std::vector<DirectoryLock> lock_output(const TrainOptions& options, World& world);

}  // namespace zeroshard
