#include "zeroshard/step_time.h"

#include <algorithm>

#include "base/check.h"
#include "placement/placement.h"

// Note [Step time]
// In the forward pass, a token costs 2 operations for each element of the weight matrices. In each layer, attention
// over L keys costs 4 h L more operations, where h = heads x head_dim. Masked keys count, as they do in published
// utilisations. The backward pass costs twice as much. The update of an element reads and writes its master weight and
// moments, reads its gradient, and writes the parameter if that has 16 bits. Copies to and from the device overlap
// compute. Optimizer states in files are read and written during the update, which begins after backward. Their first
// chunks are read earlier, but these chunks are negligible for a model that is worth offloading. Gathers overlap the
// passes if units are prefetched, and sums of gradients overlap backward if the configuration has overlap_comm.
namespace zeroshard {
namespace {

// Returns the number of parameters that a token uses. The embeddings, which are only looked up, and the experts that
// are not chosen do not count. A head that shares the embedding's weight counts. The small vectors of norms and biases
// count, too.
double active_params(const ModelShapes& model) {
  const LayerSizes& sizes = model.sizes;
  double sum = 0;
  for (size_t u = 1; u < model.units.size(); ++u) {  // without the embedding, which is only looked up
    if (model.units[u].name.ends_with(".wpe")) continue;
    for (const ParamShape& param : model.units[u].params) sum += double(param.numel());
  }
  const auto is_tied = [](const ParamShape& param) { return param.names.size() > 1; };
  if (!model.units.empty() && std::ranges::any_of(model.units.front().params, is_tied))
    sum += double(sizes.vocab) * double(model.hidden_size);
  if (sizes.experts > 0) {
    const double idle = double(sizes.experts - sizes.experts_per_token);
    sum -= double(sizes.layers) * idle * 3 * double(model.hidden_size) * double(sizes.intermediate);
  }
  return sum;
}

double forward_flops(const ModelShapes& model, const ActivationOptions& activations) {
  const LayerSizes& sizes = model.sizes;
  const auto length = double(activations.sequence_length);
  const double attention = 4 * double(sizes.layers) * double(sizes.heads) * double(sizes.head_dim) * length;
  return (2 * active_params(model) + attention) * double(activations.tokens());
}

double seconds(double bytes, const std::optional<double>& rate, const char* name) {
  if (bytes == 0) return 0;
  ZS_CHECK(rate.has_value(), "the rate '", name, "' is not known, and ", int64_t(bytes), " bytes of a step go there");
  return bytes / *rate;
}

struct UpdateBytes {
  double memory = 0, to_host = 0, to_device = 0;
};

UpdateBytes update_bytes(double updated, const PlanOptions& options) {
  const bool is_wide = options.compute_dtype == DType::kFloat32;
  const double e = double(element_size(options.compute_dtype)), batches = double(options.grad_accumulation_steps);
  const GroupPlacement place =
      place_group(options.compute_dtype, /*requires_grad=*/true, Placement::kReplicated, options);
  const double gradient = double(element_size(place.grad_dtype));
  UpdateBytes bytes;
  const Tier parameters =
      place_group(options.compute_dtype, /*requires_grad=*/true, Placement::kSharded, options).parameters.tier;
  const bool have_left = parameters != Tier::kDevice;
  // Parameters are copied once for forward and once for backward.
  if (options.on_device && have_left) bytes.to_device = 2 * updated * e * batches;
  if (options.on_device) {  // an update by the device counts as no time
    const double all = updated;
    updated *= options.state_tier == Tier::kDevice ? 0 : options.state_share;
    if (have_left) bytes.to_host = (all - updated) * e;
    if (updated == 0) return bytes;
  }
  const double states =
      4 + double(place.moments.block_bytes()) / double(kScaledNumel);  // 4 bytes for the master weight
  bytes.memory = updated * (2 * states + gradient + (is_wide ? 0 : e));
  if (!options.on_device) return bytes;
  if (options.gradient_tier != Tier::kDevice) {
    bytes.to_host += updated * gradient * batches;
    bytes.to_device += updated * gradient * (batches - 1);  // the device adds the gradients of later micro-batches
  } else {
    bytes.to_host += updated * gradient;  // once in each step, for the update
  }
  if (!have_left) bytes.to_device += updated * e;  // the host reads parameters only if a user has written to them
  return bytes;
}

NetworkTime network_time(const ModelShapes& model, const PlanOptions& options, const MachineRates& rates) {
  const NetworkBytes bytes = plan_network(model, options);
  const double second = seconds(bytes.total(), rates.network, "network") / std::max(bytes.total(), 1.);
  NetworkTime time{.update = bytes.refresh * second, .alone = bytes.whole * second};
  (options.prefetch ? time.forward : time.alone) += bytes.forward * second;
  (options.prefetch ? time.backward : time.alone) += bytes.backward * second;
  (options.overlap ? time.backward : time.alone) += bytes.sums * second;
  return time;
}

double tokens_per_second(const PlannedStep& step) {
  return step.tokens / step.total();
}

}  // namespace

PlannedStep plan_step(const ModelShapes& model, const PlanOptions& options, const ActivationOptions& activations,
                      const MachineRates& rates) {
  ZS_CHECK(rates.flops > 0, "operations per second must be above 0, got ", rates.flops);
  const PlannedBytes planned = plan_model(model, options);
  const double batches = double(options.grad_accumulation_steps);
  const double updated = double(model.numel()) / (options.stage == 0 ? 1 : state_ranks(options));
  const UpdateBytes bytes = update_bytes(updated, options);
  PlannedStep step;
  step.is_late = options.delayed_update;
  step.tokens = double(activations.tokens()) * batches;
  step.forward = forward_flops(model, activations) * batches / rates.flops;
  step.backward = step.forward * (activations.checkpointing ? 3 : 2);
  step.update = seconds(bytes.memory, rates.host, "host");
  // If inputs of checkpointed layers are offloaded, they are copied to the host and back.
  const double left = activations.on_device ? plan_activations(model, activations).elsewhere * batches : 0;
  step.link = seconds(std::max(bytes.to_host, bytes.to_device) + left, rates.link, "link");
  // fp32 parameters are their own master weights, so an update reads and writes them. 16-bit parameters are written,
  // but not read.
  const bool own_masters = options.compute_dtype == DType::kFloat32;
  const double parameters = planned.file.parameters;
  // Parameters are read for forward and for backward. Inputs of checkpointed layers are written once and read once.
  // Each backward writes gradients. Each backward but the first also reads them, because it adds to them. The update
  // reads them once more, which is counted in step.disk.
  const double inputs = options.activations_in_files ? plan_activations(model, activations).elsewhere : 0;
  const double gradients = planned.file.gradients;
  step.reads = seconds(2 * batches * (parameters + inputs) + (2 * batches - 1) * gradients, rates.disk, "disk");
  const double states = planned.file.master_weights + planned.file.moments;
  step.disk = seconds(2 * states + gradients + (own_masters ? 2 : 1) * parameters, rates.disk, "disk");
  step.network = network_time(model, options, rates);
  return step;
}

std::optional<StepChange> best_change(const ModelShapes& model, const PlanOptions& options,
                                      const ActivationOptions& activations, const MachineRates& rates) {
  constexpr double kWorthIt = 1.05;
  std::vector<StepChange> changes;
  const auto add = [&](std::string change, const PlanOptions& changed, const MachineRates& of) {
    changes.push_back({std::move(change), plan_step(model, changed, activations, of)});
  };
  PlanOptions accumulating = options;
  accumulating.grad_accumulation_steps *= 2;
  add(concat("gradient_accumulation_steps = ", accumulating.grad_accumulation_steps), accumulating, rates);
  const int here = options.ranks_per_host;
  const bool grows_by_hosts = here == 0 || (options.world_size % here == 0 && rates.network);
  if (options.stage > 0 && grows_by_hosts && 2 * options.world_size <= kMaxPlannedWorldSize) {
    PlanOptions wider = options;
    wider.world_size *= 2;
    add(concat(wider.world_size, " ranks, each with as much of everything"), wider, rates);
  }
  if (rates.disk && options.state_tier == Tier::kFile) {
    MachineRates striped = rates;
    *striped.disk *= 2;
    add("zero_optimization.offload_optimizer.nvme_path with a second disk", options, striped);
  }
  const PlannedStep now = plan_step(model, options, activations, rates);
  const auto best =
      std::ranges::max_element(changes, {}, [](const StepChange& change) { return tokens_per_second(change.step); });
  if (tokens_per_second(best->step) < kWorthIt * tokens_per_second(now)) return std::nullopt;
  return *best;
}

}  // namespace zeroshard
