#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/memory_limits.h"
#include "zeroshard/config.h"

// Replaces "auto" as the place of optimizer states or parameters by a real place.
namespace zeroshard {

bool has_auto_offload(const Config& config);

// Returns the configurations that `config` may become, without "auto", the fastest first. States and gradients are
// offloaded first, because they move once per step. Then parameters are offloaded, which move in each micro-batch. Then
// states move from the host to files, if the config names a directory for them. Configurations that an engine refuses
// are left out, unless it refuses all.
std::vector<Config> offload_choices(const Config& config, bool on_device, bool may_use_files);

struct OffloadChoice {
  size_t index = 0;            // index in offload_choices()
  std::string why_not_before;  // the limits that the previous choice exceeds; "" for the first
  enum class Fit : uint8_t { kYes, kNo, kUnknown } fits = Fit::kUnknown;
};
// Returns the first choice within the limits. If there is none, returns the last choice for a device, or on the CPU the
// choice that needs the least.
OffloadChoice choose_offload(const std::vector<Config>& choices, const MemoryLimits& limits,
                             const std::function<MemoryNeeds(const Config&)>& needs, bool on_device);

// Returns what "auto" became and why, for a log.
std::string describe_choice(const Config& asked, const Config& chosen, const OffloadChoice& choice);

}  // namespace zeroshard
