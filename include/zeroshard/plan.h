#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/config.h"
#include "zeroshard/dtype.h"
#include "zeroshard/placement.h"

// Computes how many bytes a rank will hold, before anything is allocated. The plan does not count activations (see
// activations.h), temporary memory of the model's operators, or the memory of LibTorch itself.
namespace zeroshard {

struct PlanOptions : PlacementOptions {
  DType compute_dtype = DType::kBFloat16;
  bool overlap = true;
  bool prefetch = true;
  int replicas = 1;                     // groups of world_size ranks each; every group has a copy of the parameters
  bool quantized_gradients = false;     // true: replicas send each other sums of gradients as 8-bit numbers
  bool quantized_weights = false;       // true: replicas that share states send each other parameters as 8-bit numbers
  bool replicas_need_scratch = false;   // true: the transport between replicas needs a second buffer for a sum
  bool exchange_needs_scratch = false;  // true: the transport within a replica needs a second buffer for a sum
  int ranks_per_host = 0;               // 0: all ranks are on one host
  bool in_two_levels = true;            // true: CPU ranks send data to another host once, not once for each rank there
  bool sums_natively = false;           // true: gradients are summed by the process group's own reduce-scatter
  int swap_buffers = 4;                 // if states lie in files: the number of chunks in memory at one time
  // If parameters lie in files: the number of buffers for shards in memory, and the largest number of elements of each.
  int parameter_buffers = 5;
  int64_t parameter_buffer_numel = 100'000'000;
  bool activations_in_files = false;  // true: activation checkpoints lie in files
  // The dtype in which ranks exchange the momenta of Muon's matrices. Unset: the optimizer is not Muon.
  std::optional<DType> matrix_dtype = std::nullopt;
  OffloadConfig::Gradients gradients = OffloadConfig::Gradients::kAuto;  // requested tier of reduced gradients
};

// Returns the number of moments per element: 2 for Adam and AdamW, 1 for Lion, Adagrad and SGD with momentum, and 0 for
// SGD without momentum. For Muon it returns 2, although matrices need only 1.
int optimizer_slots(const OptimizerConfig& config);

// Returns the options that `config` implies. If `on_device` is true, ranks run on a GPU or another accelerator. If it
// is false, they run on the CPU, and their device memory is the host's memory. A config without an optimizer counts as
// one with AdamW.
PlanOptions plan_options(const Config& config, bool on_device = false);
// Returns the tier of reduced gradients. On the CPU, it is kFile if options.gradients requests files and the states are
// in files. Otherwise it is kDevice. On a GPU or another accelerator, gradients leave the device only if all states are
// offloaded and options.gradients does not request the device. They then go to kFile in the same case as on the CPU,
// and else to kHost.
Tier tier_of_gradients(const PlanOptions& options);
// Returns whether the config places anything in files by "nvme". "auto" does not count.
bool asks_for_files(const Config& config);
// Returns whether to plan for ranks on a GPU if the user does not say where the ranks run. If only GPU ranks or only
// CPU ranks accept the config's offload, the plan is for the ranks that accept it. Otherwise the plan is for CPU ranks
// if the config places something in files, and for GPU ranks if not.
bool is_for_device(const Config& config);

// The bytes of one rank on a tier other than its device.
struct PlannedTier {
  double parameters = 0, gradients = 0, master_weights = 0, moments = 0;
  double buffers = 0;  // buffers through which data are copied to the device or to files, and back

  double total() const { return parameters + gradients + master_weights + moments + buffers; }
};

// The bytes of one rank, on its device unless a member's comment says otherwise. If the plan is made from a model's
// shapes, the numbers are whole, and exact below 2^53. If it is made from a mere count of parameters, it has no
// padding, and the numbers can have fractions.
struct PlannedBytes {
  double parameters = 0, gradients = 0, master_weights = 0, moments = 0;
  double gather_ring = 0, reduce_ring = 0;
  double swap = 0;         // if ranks run on the CPU: buffers through which data go to files and back
  PlannedTier host, file;  // not in model_states() and total()
  // total() does not include the next two members, which have a meaning only for ranks on a GPU. plan_model() sets them
  // for all ranks. plan_count() leaves them at 0.
  double temporaries = 0;  // temporary memory of a step
  double init_peak = 0;    // largest total while an engine is built from a model that is on the device

  double model_states() const { return parameters + gradients + master_weights + moments; }
  double total() const { return model_states() + gather_ring + reduce_ring + swap; }
};

// The largest number of parameters that can be planned. The limit keeps every number of bytes exact.
inline constexpr int64_t kMaxParams = 100'000'000'000'000;

// Plans `num_params` trainable parameters with the formulas of the ZeRO paper. The plan has only model states, without
// padding, and no gather and reduce rings. Throws ValueError for a count or an option that cannot be planned.
PlannedBytes plan_count(int64_t num_params, const PlanOptions& options);

// A parameter's name in transformers, and its shape. Tied parameters are one entry with several names.
struct ParamShape {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  int64_t numel() const;
};

struct UnitShapes {
  std::string name;
  std::vector<ParamShape> params;
};

// The number of decoder layers, the sizes of one layer, and the size of the vocabulary.
struct LayerSizes {
  int64_t layers = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  int64_t experts = 0, experts_per_token = 0;  // 0: one MLP without experts
};

struct ModelShapes {
  std::string model_type;
  int64_t hidden_size = 0;
  LayerSizes sizes;
  std::vector<UnitShapes> units;   // embeddings, one unit per decoder layer, final norm, head (unless it is tied)
  std::vector<std::string> notes;  // assumptions, in words
  int64_t numel() const;
};

// Returns the parameters of a Hugging Face causal language model, from the text of its config.json. Throws a ValueError
// that names `source` for text that is not JSON, for an unknown model_type (the message lists the known ones), and for
// fields that do not describe a model.
ModelShapes parse_model_shapes(std::string_view json, const std::string& source);
// Does the same for a file. `path` is a config.json, or a directory that contains one.
ModelShapes load_model_shapes(const std::string& path);

// Plans the bytes that one rank holds for the model: model states with padding, gather and reduce rings, and buffers.
// Throws ValueError for an option that cannot be planned, and for a rule of options.rules that is malformed or matches
// no unit.
PlannedBytes plan_model(const ModelShapes& model, const PlanOptions& options);
// The way in which a rank holds one unit's states. The texts say for each state how it is divided among ranks, its
// dtype, and its tier if that is not the device ("sharded bf16 on host"). A text is "-" if the unit has no such state.
struct PlannedUnit {
  std::string name;
  int64_t numel = 0;
  std::string parameters, gradients, master_weights, moments;
  double bytes = 0;  // bytes that one rank holds, with padding and without rings
};
// Returns the units of a model in order. Throws ValueError for the same reasons as plan_model().
std::vector<PlannedUnit> plan_units(const ModelShapes& model, const PlanOptions& options);
// Returns kinds of units instead of units, for a caller that has no model. Members `numel` and `bytes` are 0. If
// parameters are not sharded, the only kind is "all units". Otherwise there is one kind per rule. Two more kinds
// follow: units up to the persistence threshold (left out if the threshold is 0), and all other units. Both are left
// out if a rule is for "*".
std::vector<PlannedUnit> plan_kinds_of_units(const PlanOptions& options);
// Returns how many bytes an engine can need in addition to the planned bytes while it takes over a model on the host.
// These are the bytes of the largest group of parameters that share one flat buffer of a unit, whole and in fp32.
double init_extra_bytes(const ModelShapes& model, const PlanOptions& options);

// Return the host bytes that one rank needs for background checkpoints. They hold the rank's share of the fp32 weights
// and of the optimizer's states, at every stage. The first save allocates them. If the states lie in files, only fp32
// parameters that are whole on every rank need these bytes, because the save reads all other values where they lie. The
// second function is for a mere count of parameters.
double checkpoint_staging_bytes(const ModelShapes& model, const PlanOptions& options);
double checkpoint_staging_bytes(double numel, const PlanOptions& options);

// The largest world size that check_fit() considers.
inline constexpr int kMaxPlannedWorldSize = 1 << 20;

struct FitReport {
  bool fits = false;
  double ratio = 0;                   // bytes that a rank needs / `device_bytes`
  std::optional<int> lowest_stage;    // the lowest stage that fits at this world size; unset: none
  std::optional<int> min_world_size;  // the smallest world size that fits at this stage; unset: none
  std::optional<int> min_world_size_stage_3;
};

// Compares bytes_per_rank(options) with `device_bytes`. Also finds the lowest stage that fits at this world size, and
// the smallest world sizes that fit at this stage and at stage 3.
FitReport check_fit(double device_bytes, const PlanOptions& options,
                    const std::function<double(const PlanOptions&)>& bytes_per_rank);

// Parses a whole number of parameters: "7.5e9", "7.5B", "350M". Throws ValueError for other text.
int64_t parse_param_count(std::string_view text);
// Parses a number of bytes: "24GB", "24e9", "22.5 GiB". Throws ValueError for other text.
double parse_bytes(std::string_view text);

}  // namespace zeroshard
