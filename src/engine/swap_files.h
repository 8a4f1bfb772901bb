#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "placement/placement.h"
#include "store/swap_space.h"
#include "zeroshard/engine.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// Copies the configuration's settings for swap files to the options of a ChunkStore or a RecordStore, and creates
// missing directories. If a directory cannot be created, no error is thrown here, but the store throws when it opens
// the directory.
template <typename StoreOptions>
void take_keys(const Config& config, const std::vector<std::string>& directories, StoreOptions& store) {
  store.directories = directories;
  for (const std::string& directory : directories) {
    std::error_code ignored;
    std::filesystem::create_directories(directory, ignored);
  }
  store.block_bytes = config.aio.block_size.value_or(store.block_bytes);
  store.queue_depth = config.aio.queue_depth.value_or(store.queue_depth);
  store.thread_count = config.aio.thread_count.value_or(store.thread_count);
  store.verify = config.offload.verify;
  store.ring = &kernel_ring();
}
// Logs a warning on any rank if the file is in memory (tmpfs). Otherwise rank 0 logs a warning if the file uses the
// page cache. `what` names the contents of the file, and `path_key` the configuration key of its directory.
void warn_of(const SwapFile& file, std::string_view what, std::string_view path_key, int rank);

// The inputs for creating the swap files of this rank. All must outlive the files.
struct SwapContext {
  std::span<const UnitLayout> units;
  std::span<const UnitPlacement> placements;
  const EngineOptions& options;
  const PlanOptions& plan;
  Comm& comm;
  Ledger& ledger;
};

// These functions create the swap files of this rank's optimizer states, parameters and gradients. They return null if
// no such values are in files. Otherwise they are collective over context.comm. If a rank cannot create its files,
// every rank throws ConfigError with the number of that rank, its directory and the reason. `on_failure` is passed to
// the SwapSpace.
std::unique_ptr<SwapSpace> make_swap_files(const SwapContext& context, SwapSpace::OnFailure on_failure);
std::unique_ptr<SwapSpace> make_parameter_files(const SwapContext& context, SwapSpace::OnFailure on_failure);
std::unique_ptr<SwapSpace> make_gradient_files(const SwapContext& context, SwapSpace::OnFailure on_failure);

}  // namespace zeroshard
