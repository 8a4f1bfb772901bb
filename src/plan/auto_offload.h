#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/memory_limits.h"
#include "zeroshard/config.h"

// Chooses a device ("none", "cpu" or "nvme") where the configuration says "auto" for the offload of optimizer states or
// of parameters.
namespace zeroshard {

bool has_auto_offload(const Config& config);

// Returns the configurations without "auto" that `config` can become, the fastest first. On a device, offloading only
// the states comes before offloading parameters, because states are moved once per step, and parameters in each
// micro-batch. Choices with files come last. Files are chosen only if `may_use_files` is true and `config` names a
// directory for them. On the CPU, "cpu" would change nothing, so only "none" and files are tried. Configurations that
// an engine refuses are left out, unless an engine refuses all of them.
std::vector<Config> offload_choices(const Config& config, bool on_device, bool may_use_files);

struct OffloadChoice {
  size_t index = 0;            // index of the choice in offload_choices()
  std::string why_not_before;  // the limits that the choice before exceeds; "" for the first choice and for kNo
  enum class Fit : uint8_t { kYes, kNo, kUnknown } fits = Fit::kUnknown;
};
// Returns the first choice that is within the limits. If no choice is, returns the last choice if `on_device` is true,
// and else the choice that needs the least memory. If no limit is set, returns the first choice.
OffloadChoice choose_offload(const std::vector<Config>& choices, const MemoryLimits& limits,
                             const std::function<MemoryNeeds(const Config&)>& needs, bool on_device);

// Returns a text for a log that says what "auto" became, and why.
std::string describe_choice(const Config& asked, const Config& chosen, const OffloadChoice& choice);

}  // namespace zeroshard
