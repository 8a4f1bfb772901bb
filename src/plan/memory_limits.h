#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory/host_memory.h"
#include "memory/ledger.h"
#include "zeroshard/plan.h"

// Checks a plan against the memory limits of a rank, and finds changes that help.
namespace zeroshard {

struct MemoryLimit {
  double bytes = 0;
  std::string source;  // where the limit comes from: a key, an option, or words
};

// The limits of one rank. For ranks on the CPU only `host` is set, because their device memory is host memory.
struct MemoryLimits {
  std::optional<MemoryLimit> device, host;

  std::vector<TierLimit> of_tiers(bool on_device) const;
};

struct MemoryNeeds {
  double device = 0, host = 0;
  bool with_activations = false;  // whether activations are included
};
// Returns what a rank needs, without files. For a rank on the CPU, all of it is host memory.
MemoryNeeds memory_needs(const PlannedBytes& planned, bool on_device);
MemoryNeeds memory_needs(const Bytes& planned, bool on_device);

// Returns the limits from zeroshard.offload.device_memory and host_memory. For ranks on the CPU, both limit the host's
// memory, so the smaller one is returned as `host`.
MemoryLimits configured_limits(const OffloadConfig& config, bool on_device);
// Returns the most host memory that each of `ranks` ranks can have: an equal part of what the host or the control group
// has, or the process's own limit (ulimit -v) if that is less. Returns nothing if none of these is known.
std::optional<MemoryLimit> limit_of_host(const HostMemory& host, int ranks);

// Returns the limits that `needs` exceed, in words, with their sources: "each rank needs 5 bytes of the device's
// memory, activations aside, and has 4 bytes: KEY". Returns "" if `needs` exceed no limit.
std::string passed_limits(const MemoryNeeds& needs, const MemoryLimits& limits, bool on_device);

// A search for a plan that fits.
struct FitSearch {
  PlanOptions options;  // options of a plan that does not fit
  MemoryLimits limits;
  std::function<MemoryNeeds(const PlanOptions&)> needs;
  bool may_use_files = true;  // whether states, parameters and gradients may be placed in files
};
// A configuration key and its new value, as JSON.
struct KeyValue {
  std::string path, value;
};
// Changes of keys with which a plan fits, and the options of the changed plan. The changed plan can also have more
// ranks.
struct FitChange {
  std::vector<KeyValue> keys;
  PlanOptions options;
};
// Plans changes in this order: a higher stage, offload, both, more ranks, and more ranks together with each of the
// changes before. Returns the first change that fits, or nothing if none fits.
std::optional<FitChange> smallest_change(const FitSearch& search);
// Returns the change in words. `world_size` is the number of ranks before the change.
std::string describe(const FitChange& change, int world_size);
// Returns a sentence with the smallest change that fits, or a sentence that says that no change fits.
std::string advice_to_fit(const FitSearch& search);

}  // namespace zeroshard
