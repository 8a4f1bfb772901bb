#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory/host_memory.h"
#include "memory/ledger.h"
#include "zeroshard/plan.h"

// What one rank may hold, whether a plan keeps to it, and what would help.
namespace zeroshard {

struct MemoryLimit {
  double bytes = 0;
  std::string source;  // what set it: a key, an option, or words
};

// Of one rank. Where the device is the CPU its memory is the host's: then `host` alone is set.
struct MemoryLimits {
  std::optional<MemoryLimit> device, host;

  std::vector<TierLimit> of_tiers(bool on_device) const;
};

struct MemoryNeeds {
  double device = 0, host = 0;
  bool with_activations = false;  // they are among these
};
// Where the device is the CPU, all is the host's.
MemoryNeeds memory_needs(const PlannedBytes& planned, bool on_device);
MemoryNeeds memory_needs(const Bytes& planned, bool on_device);

// What zeroshard.offload.device_memory and host_memory say.
MemoryLimits configured_limits(const OffloadConfig& config, bool on_device);
// What the host gives each of its `ranks`: the most that there can be. Nothing where that is not known.
std::optional<MemoryLimit> limit_of_host(const HostMemory& host, int ranks);

// The limits that `needs` pass, in words: "the plan needs 5 bytes of ..., and has 4 (KEY)"; "" if it keeps to them.
std::string passed_limits(const MemoryNeeds& needs, const MemoryLimits& limits, bool on_device);

// A question to the planner.
struct FitSearch {
  PlanOptions options;  // with which it does not fit
  MemoryLimits limits;
  std::function<MemoryNeeds(const PlanOptions&)> needs;
  bool may_use_files = true;  // states can lie in files
};
// A key of a configuration, and the value it gets, as JSON.
struct KeyValue {
  std::string path, value;
};
// What to change so that a plan fits, and what is planned then: perhaps with more ranks.
struct FitChange {
  std::vector<KeyValue> keys;
  PlanOptions options;
};
// The first of these that fits: a higher stage, offload, both, or more ranks. Nothing if none does. Every answer was
// planned.
std::optional<FitChange> smallest_change(const FitSearch& search);
// In words, for a plan of `world_size` ranks.
std::string describe(const FitChange& change, int world_size);
// The smallest change in a sentence, which says so if nothing fits.
std::string advice_to_fit(const FitSearch& search);

}  // namespace zeroshard
