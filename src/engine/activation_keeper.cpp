#include "engine/activation_keeper.h"

#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "engine/activation_files.h"
#include "engine/host_activations.h"
#include "engine/swap_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr std::string_view kPathKey = "zero_optimization.offload_optimizer.nvme_path";

void describe(const RecordStore& store, int rank) {
  for (const RecordStore::File& file : store.files()) warn_of(file.swap, "activations", kPathKey, rank);
  if (rank == 0)
    log(LogLevel::kInfo, concat("inputs of checkpointed layers go to files, by ", store.queue_name(),
                                store.options().verify ? "" : ", without checksums"));
}

RecordStore::Options store_options(const Config& config) {
  RecordStore::Options store;
  store.directories = config.offload_optimizer.nvme_path;
  take_keys(config, store);
  return store;
}

}  // namespace

std::unique_ptr<ActivationKeeper> make_activation_keeper(const EngineOptions& options, Comm& comm, Ledger& ledger,
                                                         std::function<void(const std::string& message)> on_failure) {
  using Activations = OffloadConfig::Activations;
  const Activations where = options.config.offload.activations;
  if (where == Activations::kCpu && !options.device.is_cpu()) return std::make_unique<HostActivations>(options.device);
  if (where != Activations::kNvme) return nullptr;
  std::unique_ptr<ActivationFiles> files;
  try {
    together(comm, "activation files", [&] {
      files =
          std::make_unique<ActivationFiles>(store_options(options.config), posix_io(), ledger, std::move(on_failure));
    });
  } catch (const IoError& error) {
    throw ConfigError(concat(kPathKey, ": ", error.what()));
  }
  describe(files->store(), comm.rank());
  return files;
}

}  // namespace zeroshard
