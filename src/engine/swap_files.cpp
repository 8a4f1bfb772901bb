#include "engine/swap_files.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "device/pinned_memory.h"
#include "file/request_sizes.h"
#include "plan/swap_plan.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// The contents of swap files, and the settings of the configuration for them.
struct Wanted {
  std::string_view what, path_key;
  std::vector<ChunkGroup> groups;
  const std::vector<std::string>& directories;
  int buffer_count;
  int chunks_at_once;  // number of chunks that may be requested at a time; 0: few enough for the usual queue depth
  bool pin;            // whether a device copies from or to the buffers, so that they should be pinned
};

// Returns the queue depth with which all blocks of `chunks` chunks of fp32 can be requested at a time. This is the
// number of these blocks, but at most 1024.
int depth_for(int chunks, int64_t block_bytes) {
  constexpr int64_t kMost = 1024;
  return int(std::min(chunks * kChunkNumel * int64_t{sizeof(float)} / block_bytes, kMost));
}

int64_t bytes_of(std::span<const ChunkGroup> groups) {
  int64_t bytes = 0;
  for (const ChunkGroup& group : groups) bytes += group.bytes();
  return bytes;
}

// Does nothing if the configuration sets the queue depth. Otherwise chooses the block size and the queue depth that
// suit the disk of the first directory. Keeps those of `store` if the configuration sets the block size, if the files
// are small, or if the disk cannot be measured. In each of these cases, then raises the queue depth if it is too small
// for wanted.chunks_at_once.
void choose_sizes(const SwapContext& context, const Wanted& wanted, ChunkStore::Options& store) {
  // For smaller files the disk is not measured, because that takes longer than reading and writing them.
  constexpr int64_t kLeastBytes = int64_t{256} << 20;
  const AioConfig& aio = context.options.config.aio;
  if (aio.queue_depth) return;
  if (!aio.block_size && bytes_of(wanted.groups) >= kLeastBytes) {
    try {
      RequestSizesOptions options;
      options.cache = cache_directory();
      options.usual = {store.block_bytes, store.queue_depth};
      options.thread_count = store.thread_count;
      options.ring = store.ring;
      const RequestSizes sizes = measured_sizes(store.directories.at(0), options, posix_io());
      store.block_bytes = sizes.block_bytes;
      store.queue_depth = sizes.queue_depth;
    } catch (const IoError& error) {
      if (context.comm.rank() == 0)
        log(LogLevel::kInfo, concat("requests to swap files have their usual sizes: ", error.what()));
    } catch (const std::bad_alloc&) {  // the store will report the missing memory
    }
  }
  store.queue_depth = std::max(store.queue_depth, depth_for(wanted.chunks_at_once, store.block_bytes));
}

void describe(const ChunkStore& store, const Wanted& wanted, int rank) {
  for (const SwapFile& file : store.files())
    // If there are fewer chunks than directories, some files are empty and need no warning.
    if (file.bytes() > 0) warn_of(file, wanted.what, wanted.path_key, rank);
  if (rank == 0)
    log(LogLevel::kInfo,
        concat(wanted.what, " in files: ", store.layout().total_bytes(), " bytes of each rank, by ", store.queue_name(),
               " in requests of ", store.options().block_bytes, " bytes, up to ", store.options().queue_depth,
               " at once", store.options().verify ? "" : ", without checksums"));
}

std::unique_ptr<SwapSpace> make(const SwapContext& context, const Wanted& wanted, SwapSpace::OnFailure on_failure) {
  if (wanted.groups.empty()) return nullptr;
  ChunkStore::Options store;
  store.buffer_count = wanted.buffer_count;
  take_keys(context.options.config, wanted.directories, store);
  choose_sizes(context, wanted, store);
  const c10::Device device = context.options.device;
  if (wanted.pin && !device.is_cpu()) store.allocate = [device](int64_t bytes) { return pinned_memory(bytes, device); };
  std::unique_ptr<SwapSpace> space;
  try {
    together(context.comm.host(), "swap files", [&] {
      space = std::make_unique<SwapSpace>(wanted.groups, std::move(store), posix_io(), context.ledger,
                                          host_tier(!device.is_cpu()), std::move(on_failure));
    });
  } catch (const IoError& error) {
    throw ConfigError(concat(wanted.path_key, ": ", error.what()));
  }
  describe(space->store(), wanted, context.comm.rank());
  return space;
}

}  // namespace

void warn_of(const SwapFile& file, std::string_view what, std::string_view path_key, int rank) {
  if (file.on_tmpfs())
    log(LogLevel::kWarning, concat(file.path(), " is in memory, because its file system is a tmpfs, so ", what,
                                   " in it save no memory. Set ", path_key, " to a directory on a disk"));
  else if (!file.direct() && rank == 0)
    log(LogLevel::kWarning, concat(file.path(), " goes through the page cache: its file system has no O_DIRECT"));
}

std::unique_ptr<SwapSpace> make_swap_files(const SwapContext& context, SwapSpace::OnFailure on_failure) {
  const OffloadOptimizerConfig& config = context.options.config.offload_optimizer;
  const Wanted wanted{"optimizer states",
                      "zero_optimization.offload_optimizer.nvme_path",
                      groups_in_file(context.units, context.placements),
                      config.nvme_path,
                      config.buffer_count,
                      /*chunks_at_once=*/0,
                      /*pin=*/false};
  return make(context, wanted, std::move(on_failure));
}

std::unique_ptr<SwapSpace> make_parameter_files(const SwapContext& context, SwapSpace::OnFailure on_failure) {
  const OffloadParamConfig& config = context.options.config.offload_param;
  const int chunks = parameter_chunks(context.units, context.placements, context.plan);
  const Wanted wanted{"parameters",
                      "zero_optimization.offload_param.nvme_path",
                      parameters_in_file(context.units, context.placements),
                      config.nvme_path,
                      std::max(chunks, 1),
                      chunks,
                      config.pin_memory};
  const bool may_stay = config.device == OffloadParamConfig::Device::kNvme && config.max_in_memory > 0;
  if (wanted.groups.empty() && may_stay && context.comm.rank() == 0)
    log(LogLevel::kInfo, concat("no parameters are in files: zero_optimization.offload_param.max_in_cpu is ",
                                config.max_in_memory, " elements, and what is gathered has no more on each rank"));
  return make(context, wanted, std::move(on_failure));
}

std::unique_ptr<SwapSpace> make_gradient_files(const SwapContext& context, SwapSpace::OnFailure on_failure) {
  const OffloadOptimizerConfig& config = context.options.config.offload_optimizer;
  const Wanted wanted{"gradients",
                      "zero_optimization.offload_optimizer.nvme_path",
                      gradients_in_file(context.units, context.placements),
                      config.nvme_path,
                      config.buffer_count,
                      /*chunks_at_once=*/0,
                      config.pin_memory};
  return make(context, wanted, std::move(on_failure));
}

}  // namespace zeroshard
