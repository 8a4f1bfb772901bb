#include "engine/swap_files.h"

#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "plan/swap_plan.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr std::string_view kPathKey = "zero_optimization.offload_optimizer.nvme_path";

void describe(const ChunkStore& store, int rank) {
  for (const SwapFile& file : store.files()) {
    if (file.bytes() == 0) continue;  // fewer chunks than directories
    if (file.in_memory())
      log(LogLevel::kWarning, concat(file.path(), " is in memory: its file system is a tmpfs, and states there save ",
                                     "none. Set ", kPathKey, " to a directory on a disk"));
    else if (!file.direct() && rank == 0)
      log(LogLevel::kWarning, concat(file.path(), " goes through the page cache: its file system has no O_DIRECT"));
  }
  if (rank == 0)
    log(LogLevel::kInfo,
        concat("optimizer states in files: ", store.layout().total_bytes(), " bytes of each rank, by ",
               store.queue_name(), " in requests of ", store.options().block_bytes, " bytes, up to ",
               store.options().queue_depth, " at once", store.options().verify ? "" : ", without checksums"));
}

}  // namespace

std::unique_ptr<SwapSpace> make_swap_files(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                                           const EngineOptions& options, Comm& comm, Ledger& ledger,
                                           SwapSpace::OnFailure on_failure) {
  const std::vector<ChunkGroup> groups = groups_in_file(units, placements);
  if (groups.empty()) return nullptr;
  const OffloadOptimizerConfig& config = options.config.offload_optimizer;
  ChunkStore::Options store;
  store.directories = config.nvme_path;
  store.buffer_count = config.buffer_count;
  const AioConfig& aio = options.config.aio;
  store.block_bytes = aio.block_size.value_or(store.block_bytes);
  store.queue_depth = aio.queue_depth.value_or(store.queue_depth);
  store.thread_count = aio.thread_count.value_or(store.thread_count);
  store.verify = options.config.offload.verify;
  store.ring = &kernel_ring();
  std::unique_ptr<SwapSpace> space;
  try {
    together(comm.host(), "swap files", [&] {
      space = std::make_unique<SwapSpace>(groups, std::move(store), posix_io(), ledger,
                                          options.device.is_cpu() ? Tier::kDevice : Tier::kHost, std::move(on_failure));
    });
  } catch (const IoError& error) {
    throw ConfigError(concat(kPathKey, ": ", error.what()));
  }
  describe(space->store(), comm.rank());
  return space;
}

}  // namespace zeroshard
