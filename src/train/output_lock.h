#pragma once
#include <optional>

#include "file/directory_lock.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Collective. Keeps train.output for this job: rank 0 has the lock, and the others nothing. Throws on every rank when
// another job has it.
std::optional<DirectoryLock> lock_output(const TrainOptions& options, World& world);

}  // namespace zeroshard
