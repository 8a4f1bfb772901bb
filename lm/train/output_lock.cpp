#include "train/output_lock.h"

#include <exception>

#include "base/check.h"
#include "zeroshard/world.h"

namespace zeroshard {

std::vector<DirectoryLock> lock_output(const TrainOptions& options, World& world) {
  std::vector<DirectoryLock> locks;
  std::exception_ptr error;
  if (world.rank() == 0) {
    try {
      Directory::create(shared_posix_io(), options.output);  // other users may read it, unlike options.checkpoints
      locks.emplace_back(posix_io(), options.output,
                         "Name another folder in train.output, or wait for that run to end");
      locks.emplace_back(posix_io(), options.checkpoints,
                         "Name another one in train.checkpoints.folder, or wait for that run to end");
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  }
  try {
    if (world.mean(error ? 1 : 0) == 0) return locks;
  } catch (const CommError&) {  // another rank got the result and ended before this rank got it
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
  throw IoError(concat("rank 0 could not lock '", options.output, "' (train.output) and '", options.checkpoints,
                       "' (train.checkpoints.folder) for this run. Look for the error of rank 0"));
}

}  // namespace zeroshard
