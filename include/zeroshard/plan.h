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

// How many bytes a rank will hold, computed before anything is allocated. Activations (activations.h), temporary memory
// of the model's operators and the memory of LibTorch itself are not counted.
namespace zeroshard {

struct PlanOptions : PlacementOptions {
  DType compute_dtype = DType::kBFloat16;
  bool overlap = true;
  bool prefetch = true;
  bool exchange_needs_scratch = false;  // the transport cannot sum straight from the peers' memory
  int swap_buffers = 4;                 // chunks in memory at a time of states that lie in files
  // The same of parameters: how many shards, and elements of each at most.
  int parameter_buffers = 5;
  int64_t parameter_buffer_numel = 100'000'000;
  bool activations_in_files = false;  // activation checkpoints lie in files
  // Muon's matrices, of which ranks exchange momenta in this dtype; unset: another optimizer.
  std::optional<DType> matrix_dtype = std::nullopt;
  OffloadConfig::Gradients gradients = OffloadConfig::Gradients::kAuto;  // where the reduced ones are to lie
};

// fp32 values per parameter: Adam and AdamW 2, Lion and Adagrad 1, SGD 1 with momentum and 0 without. Muon has 2 for
// what is no matrix, and 1 for matrices.
int optimizer_slots(const OptimizerConfig& config);

// The options that a config implies for ranks on a GPU or the like (`on_device`) or on the CPU, whose memory is the
// host's. No optimizer in the config counts as AdamW.
PlanOptions plan_options(const Config& config, bool on_device = false);
// Where reduced gradients lie, as options.gradients and the place of the states say: beside a device they leave it with
// all states alone, and files have them where they have states.
Tier tier_of_gradients(const PlanOptions& options);
// Whether the config names files for anything.
bool asks_for_files(const Config& config);
// Whether to plan for a GPU or the like where nobody says what the ranks run on: if ranks there take the config's
// offload, unless it asks for files and ranks on the CPU take it, too.
bool is_for_device(const Config& config);

// What one rank holds on a tier other than the device's.
struct PlannedTier {
  double parameters = 0, gradients = 0, master_weights = 0, moments = 0;
  double buffers = 0;  // through which state goes to the device, or to a file, and back

  double total() const { return parameters + gradients + master_weights + moments + buffers; }
};

// Bytes that one rank holds, on its device unless it says otherwise. Whole numbers when computed from a model's shapes.
// A mere count of parameters has no padding and may give fractions. Exact below 2^53.
struct PlannedBytes {
  double parameters = 0, gradients = 0, master_weights = 0, moments = 0;
  double gather_ring = 0, reduce_ring = 0;
  double swap = 0;         // memory through which bytes go to files and back, where the device is the CPU
  PlannedTier host, file;  // not in the totals
  // On a device alone, and not in the total.
  double temporaries = 0;  // of a step
  double init_peak = 0;    // of everything, while an engine is built from a model that lies on the device

  double model_states() const { return parameters + gradients + master_weights + moments; }
  double total() const { return model_states() + gather_ring + reduce_ring + swap; }
};

// Larger counts of parameters are refused, so that every byte count is exact.
inline constexpr int64_t kMaxParams = 100'000'000'000'000;

// The formulas of the ZeRO paper for `num_params` trainable parameters: model states alone, without padding or rings.
// Throws ValueError for a count, world size, stage or dtype that cannot be planned.
PlannedBytes plan_count(int64_t num_params, const PlanOptions& options);

// A parameter as transformers names and shapes it; tied parameters are one entry with several names.
struct ParamShape {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  int64_t numel() const;
};

struct UnitShapes {
  std::string name;
  std::vector<ParamShape> params;
};

// Of a decoder layer, and how many there are.
struct LayerSizes {
  int64_t layers = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  int64_t experts = 0, experts_per_token = 0;  // 0: the MLP is one
};

struct ModelShapes {
  std::string model_type;
  int64_t hidden_size = 0;
  LayerSizes sizes;
  std::vector<UnitShapes> units;   // embeddings, one per decoder layer, final norm, head unless tied
  std::vector<std::string> notes;  // assumptions, in words
  int64_t numel() const;
};

// The parameters of a Hugging Face causal language model, from the text of its config.json. Throws ValueError naming
// `source` for text that is not JSON, an unknown model_type (the message lists the known ones) and fields that do not
// describe a model.
ModelShapes parse_model_shapes(std::string_view json, const std::string& source);
// Reads a config.json, or the one in a directory.
ModelShapes load_model_shapes(const std::string& path);

// What the runtime holds for the model: model states with padding, and rings.
PlannedBytes plan_model(const ModelShapes& model, const PlanOptions& options);
// Where the state of one unit lies, in words: "sharded bf16"; "-" if it has none.
struct PlannedUnit {
  std::string name;
  int64_t numel = 0;
  std::string parameters, gradients, master_weights, moments;
  double bytes = 0;  // held by one rank, with padding and without rings
};
// The units of a model in order. Also throws ValueError for a rule of options.rules that matches none of them.
std::vector<PlannedUnit> plan_units(const ModelShapes& model, const PlanOptions& options);
// The same without a model, by kind of unit: those of each rule, small units and the others. Has no sizes.
std::vector<PlannedUnit> plan_kinds_of_units(const PlanOptions& options);
// Initialisation needs at most this much more for a model on the host: the largest unit, full and in fp32.
double init_extra_bytes(const ModelShapes& model, const PlanOptions& options);

// Host bytes of one rank for checkpoints in the background, from the first save on: its share of the fp32 weights and
// the optimizer's states. The same at every stage. Where states lie in files these are read there, and there is a copy
// of fp32 parameters alone that are whole on every rank. Nor is there one of parameters in files.
double checkpoint_staging_bytes(const ModelShapes& model, const PlanOptions& options);
double checkpoint_staging_bytes(double numel, const PlanOptions& options);

// The largest world size that fit searches consider.
inline constexpr int kMaxPlannedWorldSize = 1 << 20;

struct FitReport {
  bool fits = false;
  double ratio = 0;                   // needed / available
  std::optional<int> lowest_stage;    // the lowest stage that fits at this world size
  std::optional<int> min_world_size;  // the smallest that fits at this stage
  std::optional<int> min_world_size_stage_3;
};

// Compares bytes_per_rank(options) with `device_bytes`, also for other stages and world sizes.
FitReport check_fit(double device_bytes, const PlanOptions& options,
                    const std::function<double(const PlanOptions&)>& bytes_per_rank);

// "7.5e9", "7.5B", "350M": a whole number of parameters. Throws ValueError.
int64_t parse_param_count(std::string_view text);
// "24GB", "24e9", "22.5 GiB": bytes. Throws ValueError.
double parse_bytes(std::string_view text);

}  // namespace zeroshard
