#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/memory_limits.h"
#include "zeroshard/config.h"

// Replaces "auto" as the place of optimizer states or of parameters by a real place.
namespace zeroshard {

bool has_auto_offload(const Config& config);

// Returns the configurations without "auto" that `config` can become, the fastest first. States and gradients are
// offloaded first, because they are moved once per step. Then parameters are offloaded, which are moved in each
// micro-batch. Then states are moved from the host to files, if `config` names a directory for them. Configurations
// that an engine refuses are left out. But if an engine refuses all of them, all are returned.
std::vector<Config> offload_choices(const Config& config, bool on_device, bool may_use_files);

struct OffloadChoice {
  size_t index = 0;            // index of the choice in offload_choices()
  std::string why_not_before;  // the limits that the choice before exceeds; "" for the first choice
  enum class Fit : uint8_t { kYes, kNo, kUnknown } fits = Fit::kUnknown;
};
// Returns the first choice that is within the limits. If there is none, returns the last choice, or on the CPU the
// choice that needs the least memory.
OffloadChoice choose_offload(const std::vector<Config>& choices, const MemoryLimits& limits,
                             const std::function<MemoryNeeds(const Config&)>& needs, bool on_device);

// Returns what "auto" became and why, as a text for a log.
std::string describe_choice(const Config& asked, const Config& chosen, const OffloadChoice& choice);

}  // namespace zeroshard
