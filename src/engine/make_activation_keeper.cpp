#include "engine/make_activation_keeper.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "activations/activation_files.h"
#include "activations/host_activations.h"
#include "base/format.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "engine/swap_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// The directories of the files, and the configuration key that sets them.
struct Directories {
  const std::vector<std::string>& paths;
  std::string_view key;
};

Directories directories_of(const Config& config) {
  if (!config.offload_optimizer.nvme_path.empty())
    return {config.offload_optimizer.nvme_path, "zero_optimization.offload_optimizer.nvme_path"};
  return {config.offload_param.nvme_path, "zero_optimization.offload_param.nvme_path"};
}

void describe(const RecordStore& store, std::string_view path_key, int rank) {
  for (const RecordStore::File& file : store.files()) warn_of(file.swap, "activations", path_key, rank);
  if (rank == 0)
    log(LogLevel::kInfo, concat("inputs of checkpointed layers go to files, by ", store.queue_name(),
                                store.options().verify ? "" : ", without checksums"));
}

std::unique_ptr<CountedRecords> make_files(const EngineOptions& options, Comm& comm, Ledger& ledger,
                                           RecordStore::OnFailure on_failure) {
  const Directories directories = directories_of(options.config);
  RecordStore::Options store;
  take_keys(options.config, directories.paths, store);
  const Tier tier = host_tier(!options.device.is_cpu());
  std::unique_ptr<CountedRecords> files;
  try {
    together(comm, "activation files", [&] {
      files = std::make_unique<CountedRecords>(std::move(store), posix_io(), ledger, tier, std::move(on_failure));
    });
  } catch (const IoError& error) {
    throw ConfigError(concat(directories.key, ": ", error.what()));
  }
  describe(*files->store(), directories.key, comm.rank());
  return files;
}

}  // namespace

std::unique_ptr<ActivationKeeper> make_activation_keeper(const EngineOptions& options, Comm& comm, Ledger& ledger,
                                                         std::function<void(const std::string& message)> on_failure) {
  using Activations = OffloadConfig::Activations;
  const bool on_cpu = options.device.is_cpu();
  std::unique_ptr<CountedRecords> files;
  switch (options.config.offload.activations) {
    case Activations::kNone:
      return nullptr;
    case Activations::kCpu:
      if (on_cpu) return nullptr;
      break;
    case Activations::kNvme:
      files = make_files(options, comm.host(), ledger, std::move(on_failure));
      if (on_cpu) return std::make_unique<ActivationFiles>(std::move(files));
      break;
  }
  return std::make_unique<HostActivations>(options.device, std::move(files));
}

}  // namespace zeroshard
