#pragma once
#include <vector>

#include "file/directory_lock.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Collective. Reserves train.output and train.checkpoints.folder for this job: rank 0 holds the locks, the other ranks
// hold none. Throws on every rank when another job has one.
std::vector<DirectoryLock> lock_output(const TrainOptions& options, World& world);

}  // namespace zeroshard
