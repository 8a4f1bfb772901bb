#include "placement/offload_rules.h"

#include <string_view>
#include <vector>

#include "base/format.h"

namespace zeroshard {
namespace {

using Device = OffloadDevice;
using Gradients = OffloadConfig::Gradients;

constexpr std::string_view kRatio = "zero_optimization.offload_optimizer.ratio";
constexpr std::string_view kDevice = "zero_optimization.offload_optimizer.device";

// A configuration whose offload has no "auto", and what is known about the ranks and the optimizer that will use it.
struct Offload {
  const Config& config;
  bool on_device;
  const std::string& external_optimizer;

  const OffloadOptimizerConfig& states() const { return config.offload_optimizer; }
  bool is_external() const { return !external_optimizer.empty(); }
  bool parameters_leave() const { return config.offload_param.device != Device::kNone; }
  bool parameters_in_files() const { return config.offload_param.device == Device::kNvme; }
  bool states_leave() const { return config.stage > 0 && states().device != Device::kNone && states().ratio > 0; }
};

// Returns text that says why some or all optimizer states stay on the device, and what to set so that all are
// offloaded. `to` names the values of the device key that may be set.
std::string why_states_stay(const Offload& offload, std::string_view to = "\"cpu\" or \"nvme\"") {
  if (offload.config.stage == 0)
    return concat(
        "zero_optimization.stage is 0, where zero_optimization.offload_optimizer has no effect: set stage to ",
        "1, 2 or 3, and ", kDevice, " to ", to);
  const OffloadOptimizerConfig& states = offload.states();
  if (states.device == Device::kNone || (states.device == Device::kCpu && to.starts_with("\"nvme\"")))
    return concat(kDevice, " is \"", name_of(states.device), "\": set that to ", to);
  return concat(kRatio, " is ", states.ratio, ": set that to 1");
}

// Gradients can be in files only if optimizer states are in files, too.
std::string problem_of_gradients_in_files(const Offload& offload) {
  if (offload.config.offload.gradients != Gradients::kNvme) return "";
  if (offload.states_leave() && offload.states().device == Device::kNvme) return "";
  return concat("zeroshard.offload.gradients = \"nvme\": reduced gradients lie in files beside the optimizer states, ",
                "and ", why_states_stay(offload, "\"nvme\", with an nvme_path"),
                ", or zeroshard.offload.gradients to \"auto\"");
}

// Gradients can leave a device only if optimizer states leave it, too.
std::string problem_of_gradients_on_host(const Offload& offload) {
  if (!offload.on_device || offload.config.offload.gradients != Gradients::kCpu || offload.states_leave()) return "";
  return concat("zeroshard.offload.gradients = \"cpu\": reduced gradients lie on the host where the optimizer states ",
                "do, or with states in files, and ", why_states_stay(offload),
                ", or zeroshard.offload.gradients to \"auto\"");
}

std::string moment_dtype_of(const Config& config) {
  return concat("zeroshard.moment_dtype = \"", config.moment_dtype == kCodes ? "int8" : name_of(config.moment_dtype),
                "\": ");
}

// Moments in fp32 are always allowed. With 8-bit moments, a device must keep either all states or none. With bf16
// moments it must keep none, because only the kernels of the host store moments in bf16. No other dtype is allowed. For
// an optimizer of the caller's own and for SGD without momentum, only fp32 is allowed, because zeroshard stores no
// moments for them.
std::string problem_of_moments(const Offload& offload) {
  const Config& config = offload.config;
  if (config.moment_dtype == DType::kFloat32) return "";
  const std::string key = moment_dtype_of(config);
  if (config.moment_dtype != DType::kBFloat16 && config.moment_dtype != kCodes)
    return concat(key, "moments are stored in \"fp32\", \"bf16\" or \"int8\"");
  if (offload.is_external())
    return concat(key, offload.external_optimizer, " is an optimizer of your own, which keeps its states itself: set ",
                  "\"fp32\", or use one of zeroshard's optimizers");
  const bool is_sgd = config.optimizer && config.optimizer->type == OptimizerConfig::Type::kSgd;
  if (is_sgd && config.optimizer->momentum == 0)
    return concat(key, "SGD without momentum keeps no moments: set \"fp32\", or give SGD a momentum");
  if (!offload.on_device || (offload.states_leave() && offload.states().ratio == 1)) return "";
  if (config.moment_dtype == kCodes && !offload.states_leave()) return "";
  if (config.moment_dtype == kCodes)
    // The message does not begin with zeroshard.moment_dtype, because an optimizer object might have asked for 8-bit
    // moments.
    return concat(
        kRatio, " = ", offload.states().ratio, ": beside a device, the 8-bit moments of a parameter lie on ",
        "one side: set 1 or 0, or keep moments in fp32 (by zeroshard.moment_dtype, or by an optimizer object ",
        "without 8-bit states)");
  return concat(key, "beside a device, the moments of all elements must lie on the host or in files, and ",
                why_states_stay(offload), ", or zeroshard.moment_dtype to \"fp32\" or \"int8\"");
}

// A thread of the host makes a delayed update while a device computes the next step. So the ranks must not be on the
// CPU. All states must be on the host or in files and all gradients on the host, where only this thread uses them. All
// parameters must be on the device, because it computes with them at the same time. An optimizer of the caller's own
// cannot be delayed.
std::string problem_of_late_updates(const Offload& offload) {
  const Config& config = offload.config;
  if (!config.offload.delayed_update) return "";
  constexpr std::string_view kKey = "zeroshard.offload.delayed_update = true: ";
  constexpr std::string_view kOr = ", or delayed_update to false";
  if (!offload.on_device)
    return concat(kKey, "the host updates while a device computes, and the ranks' device is the CPU, which has to do ",
                  "both: set false");
  if (offload.is_external())
    return concat(kKey, offload.external_optimizer, " is an optimizer of your own, which updates at once: set false, ",
                  "or use one of zeroshard's optimizers");
  if (!offload.states_leave() || offload.states().ratio != 1)
    return concat(kKey, "the host updates states that have all left the device, and ", why_states_stay(offload), kOr);
  if (offload.parameters_leave())
    return concat(kKey, "the device computes with parameters of its own, and zero_optimization.offload_param.device ",
                  "is \"", name_of(config.offload_param.device), "\": set that to \"none\"", kOr);
  if (config.offload.gradients == Gradients::kDevice || config.offload.gradients == Gradients::kNvme)
    return concat(kKey, "the host updates with gradients in its memory, and zeroshard.offload.gradients is ",
                  config.offload.gradients == Gradients::kNvme ? "\"nvme\"" : "\"device\"", ": set that to \"auto\"",
                  kOr);
  return "";
}

// If only a share of each unit's states is offloaded, the device updates the other elements. So the gradients must be
// on the device, and the optimizer must not be the caller's own, because such an optimizer needs all states of a
// parameter in one place.
std::string problem_of_share(const Offload& offload) {
  const double ratio = offload.states().ratio;
  if (!offload.on_device || !offload.states_leave() || ratio == 1) return "";
  const Gradients gradients = offload.config.offload.gradients;
  if (gradients == Gradients::kCpu || gradients == Gradients::kNvme)
    return concat("zeroshard.offload.gradients = \"", gradients == Gradients::kCpu ? "cpu" : "nvme", "\": ", kRatio,
                  " is ", ratio, ", and the device updates the rest of the states with gradients that lie there: set ",
                  "\"auto\" or \"device\", or ratio to 1");
  if (offload.is_external())
    return concat(kRatio, " = ", ratio, ": ", offload.external_optimizer, " is an optimizer of your own, which needs ",
                  "the states of a parameter in one place: set 1 or 0, or use one of zeroshard's optimizers");
  return "";
}

std::string problem_of_ratio(const Offload& offload) {
  const double ratio = offload.states().ratio;
  return ratio >= 0 && ratio <= 1 ? "" : concat(kRatio, " = ", ratio, ": must be at least 0 and at most 1");
}

std::string problem_of_files(const Offload& offload) {
  if (!offload.is_external() || !offload.states_leave() || offload.states().device != Device::kNvme) return "";
  return concat(kDevice, " = \"nvme\": ", offload.external_optimizer, " is an optimizer of your own, which needs its ",
                "states in memory: set \"cpu\", or use one of zeroshard's optimizers");
}

// Muon needs its momenta on the device, because ranks send the momenta of matrices to the ranks that orthogonalise the
// matrices. The momenta must be fp32, and the parameters must not be in files.
std::string problem_of_muon(const Offload& offload) {
  const Config& config = offload.config;
  if (!config.optimizer || config.optimizer->type != OptimizerConfig::Type::kMuon || offload.is_external()) return "";
  if (config.moment_dtype != DType::kFloat32)
    return concat(moment_dtype_of(config),
                  "Muon keeps its momenta in fp32: set \"fp32\", or choose the optimizer AdamW");
  const bool in_files = offload.states_leave() && offload.states().device == Device::kNvme;
  if (in_files || (offload.on_device && offload.states_leave()))
    return concat(kDevice, " = \"", name_of(offload.states().device), "\"",
                  offload.states().ratio == 1 ? "" : concat(" with ratio ", offload.states().ratio),
                  ": Muon updates whole matrices on the device, where it needs all of their momenta: set \"none\", or ",
                  "choose the optimizer AdamW");
  if (config.stage == 3 && offload.parameters_in_files())
    return concat("zero_optimization.offload_param.device = \"nvme\": Muon updates whole matrices in memory: set ",
                  "\"cpu\" or \"none\", or choose the optimizer AdamW");
  return "";
}

// If several groups of ranks share the optimizer states, parameters must stay on the device (on the CPU: in memory),
// because the groups send each other updated parameters from the device's memory.
std::string problem_of_shared_states(const Offload& offload) {
  const bool leave = offload.on_device ? offload.parameters_leave() : offload.parameters_in_files();
  if (!leave || !offload.config.shares_states()) return "";
  return concat("zero_optimization.offload_param.device = \"", name_of(offload.config.offload_param.device),
                "\": groups of ranks that share the optimizer states (zeroshard.mesh.outer = \"optimizer\", ",
                "zero_hpz_partition_size) keep their parameters on the device: set \"none\" and offload the states ",
                "(offload_optimizer), or set outer to \"replicate\"");
}

std::string problem_of(const Offload& offload) {
  for (const auto problem :
       {problem_of_ratio, problem_of_muon, problem_of_shared_states, problem_of_late_updates, problem_of_moments,
        problem_of_gradients_in_files, problem_of_gradients_on_host, problem_of_files, problem_of_share})
    if (std::string text = problem(offload); !text.empty()) return text;
  return "";
}

// Returns the places to which `asked` can be resolved. "auto" can be resolved to files only if `has_path` is true. If
// `asked` is "auto", the place that offloads the least comes first.
std::vector<Device> places(Device asked, bool has_path) {
  if (asked != Device::kAuto) return {asked};
  std::vector<Device> all{Device::kNone, Device::kCpu};
  if (has_path) all.push_back(Device::kNvme);
  return all;
}

}  // namespace

std::string refused_offload(const Config& config, bool on_device, const std::string& external_optimizer) {
  std::string text;
  const OffloadOptimizerConfig& states = config.offload_optimizer;
  const OffloadParamConfig& parameters = config.offload_param;
  for (const Device of_states : places(states.device, !states.nvme_path.empty())) {
    for (const Device of_parameters : places(parameters.device, !parameters.nvme_path.empty())) {
      Config choice = config;
      choice.offload_optimizer.device = of_states;
      choice.offload_param.device = of_parameters;
      std::string problem = problem_of({choice, on_device, external_optimizer});
      if (problem.empty()) return "";
      if (text.empty()) text = std::move(problem);
    }
  }
  return text;
}

}  // namespace zeroshard
