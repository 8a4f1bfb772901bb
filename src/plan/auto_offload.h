#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/memory_limits.h"
#include "zeroshard/config.h"

// What "auto" as the place of optimizer states or parameters becomes in a run.
namespace zeroshard {

bool has_auto_offload(const Config& config);

// The configurations that `config` may become, without "auto", the fastest first: states and gradients leave first,
// which move once a step; then parameters, which move in each micro-batch; then states go from the host to files, where
// the config names a directory for them. Those that an engine refuses are left out, unless it refuses all.
std::vector<Config> offload_choices(const Config& config, bool on_device, bool may_use_files);

struct OffloadChoice {
  size_t index = 0;            // in offload_choices()
  std::string why_not_before;  // the limits that the choice before it passes; "" for the first
  enum class Fit : uint8_t { kYes, kNo, kUnknown } fits = Fit::kUnknown;
};
// The first choice that keeps to the limits. Where none does: beside a device the last one, on the CPU the one that
// needs least.
OffloadChoice choose_offload(const std::vector<Config>& choices, const MemoryLimits& limits,
                             const std::function<MemoryNeeds(const Config&)>& needs, bool on_device);

// What "auto" became, and why, for a log.
std::string describe_choice(const Config& asked, const Config& chosen, const OffloadChoice& choice);

}  // namespace zeroshard
