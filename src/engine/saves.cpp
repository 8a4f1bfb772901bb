#include "engine/saves.h"

#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log.h"
#include "base/shape_text.h"
#include "base/shown_text.h"
#include "checkpoint/convert.h"
#include "checkpoint_torch/saved_optimizer.h"
#include "checkpoint_torch/state_data.h"
#include "device/host_copy.h"
#include "device/safetensors_dtype.h"
#include "engine/consensus.h"
#include "zeroshard/version.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr char kWeight[] = "weight";

StateSlice to_slice(const TensorState& state) {
  ZS_CHECK(state.tensor.is_contiguous(), "'", state.name, "' (", state.kind, ") is not contiguous");
  return {.name = state.name,
          .kind = state.kind,
          .dtype = safetensors_dtype(state.tensor.scalar_type()),
          .aliases = {},
          .shape = state.shape,
          .elements = {state.begin, state.begin + state.tensor.numel()},
          .data = tensor_data(state.tensor)};
}

}  // namespace

// Lists slices of the parameters and optimizer states of the engine, each with access to its data.
class Saves::States {
 public:
  // kSaveStaged is a staged save, during which training may continue. If an array has a hold (Array::hold()), the
  // slices of the array take the hold when they are made. Code that wants to write to the array then waits until the
  // save has read the array. An array without a hold must be copied before training continues.
  enum class Purpose : uint8_t { kSave, kSaveStaged, kLoad };
  States(Saves& saves, Purpose purpose) : saves_(saves), purpose_(purpose) {}

  // Returns slices of the weights of trained parameters and, if `frozen`, of the others. If `optimizer`, also returns
  // slices of the optimizer's states. For a save, the slices have the elements that this rank saves. For a load, they
  // have all elements that this rank updates or, for a frozen parameter, all elements that it keeps.
  std::vector<StateSlice> slices(bool frozen, bool optimizer) const {
    std::vector<StateSlice> result;
    const auto add_all = [&](const ShardedGroup& group) {
      if (group.is_trained() || frozen) add_weights(group, result);
      if (group.is_trained() && optimizer) add_moments(group, result);
    };
    if (!saves_.memory_.has_files() || purpose_ == Purpose::kLoad) {
      for (const ShardedGroup& group : saves_.memory_.groups->all()) add_all(group);
      return result;
    }
    // The state that the next update changes first is written first, so that the update waits as little as possible.
    for (const bool is_trained : {true, false}) {
      for (const size_t unit : saves_.reducer_.order_of_forward())
        for (const ShardedGroup& group : saves_.memory_.groups->of_unit(unit))
          if (group.is_trained() == is_trained) add_all(group);
    }
    return result;
  }

 private:
  // A state that this rank has for some positions of a group.
  struct State {
    std::string kind;
    DType dtype;
    std::shared_ptr<SliceData> data;
    Range positions;
  };

  void add(const ShardedGroup& group, const State& state, std::vector<StateSlice>& to) const {
    for (size_t i = 0; i < group.num_params(); ++i) {
      const ParamSpec& param = group.param(i);
      const Range own = saves() ? saves_.ranks_.saved_part(group.mine()) : state.positions;
      const Range range = intersect(group.layout().param(i), own);
      StateSlice slice;
      slice.name = param.name();
      slice.aliases.assign(param.names.begin() + 1, param.names.end());
      slice.kind = state.kind;
      slice.dtype = safetensors_dtype(type_of(group, i, state.dtype));
      slice.shape = param.shape;
      slice.trainable = param.requires_grad;
      slice.updates = group.update_counts()[i];
      if (range.size() > 0) {
        slice.elements = range - group.layout().param(i).begin;
        slice.data = state.data;
        slice.offset = (range.begin - state.positions.begin) * element_size(state.dtype);
      } else if (saves() && (saves_.ranks_.all.rank() != 0 || param.numel() > 0)) {
        continue;  // another rank saves it
      }
      to.push_back(std::move(slice));
    }
  }

  // Returns the dtype of a state of parameter `index`. For weights that are not floating-point, takes it from the
  // parameter's tensor, because the layout knows only the width of their elements.
  at::ScalarType type_of(const ShardedGroup& group, size_t index, DType dtype) const {
    if (is_floating_point(dtype)) return to_scalar_type(dtype);
    const auto unit = size_t(&group.unit() - saves_.plan_.layouts.data());
    return saves_.executor_.unit(unit).tensors(group.flat().params[index]).front().scalar_type();
  }

  void add_weights(const ShardedGroup& group, std::vector<StateSlice>& to) const {
    // The weights are the master weights if there are any, and otherwise the parameters. There is one exception: if a
    // staged save reads states in files, and users can write to the fp32 parameters (users_may_write), the weights are
    // the parameters. The reason is that the master weights in files have not taken users' writes (see
    // UserWrites::OfMaster). The save copies these parameters, because users do not wait for the save.
    const bool is_copied = is_held(group) && group.users_may_write() && group.flat().dtype == DType::kFloat32;
    if (group.has_master() && !is_copied)
      return add(group, {kWeight, DType::kFloat32, data_of(group, kMasterWeights), group.updated()}, to);
    const Range positions = group.is_trained() ? group.updated() : group.kept();
    add(group, {kWeight, group.flat().dtype, weights_of(group, is_copied), positions}, to);
  }

  std::shared_ptr<SliceData> weights_of(const ShardedGroup& group, bool is_copied) const {
    const bool are_held = purpose_ == Purpose::kSaveStaged && group.parameters().hold() != nullptr;
    return are_held || (is_held(group) && !is_copied) ? held_parameter_data(group) : parameter_data(group);
  }

  void add_moments(const ShardedGroup& group, std::vector<StateSlice>& to) const {
    const std::vector<std::string> names = moment_names(saves_.options_.optimizer, group.flat().is_matrix);
    const int slots = std::min(saves_.plan_.options.optimizer_slots, int(names.size()));
    for (int slot = 0; slot < slots; ++slot)
      add(group, {names.at(size_t(slot)), DType::kFloat32, data_of(group, slot), group.updated()}, to);
  }

  bool saves() const { return purpose_ != Purpose::kLoad; }
  bool is_held(const ShardedGroup& group) const {
    return purpose_ == Purpose::kSaveStaged && group.is_trained() && group.states().hold() != nullptr;
  }
  std::shared_ptr<SliceData> data_of(const ShardedGroup& group, int state) const {
    // If the master weights of some elements are the parameters themselves, users write to them, too, and users do not
    // wait for the save.
    const bool are_parameters = state == kMasterWeights && !group.place().master_weights.has_rest;
    return is_held(group) ? held_data(group, state) : state_data(group, state, writers_wait() && !are_parameters);
  }

  // Returns whether only the engine writes to the states. With an external optimizer it is false, because the optimizer
  // writes to them through the tensors that it once got.
  bool writers_wait() const { return saves_.options_.external_optimizer.empty(); }

  Saves& saves_;
  Purpose purpose_;
};

AsyncSaver& Saves::saver() {
  if (!async_saver_)
    async_saver_ = std::make_unique<AsyncSaver>(ranks_.checkpoint(), posix_io(), plan_.ledger, device_copies());
  return *async_saver_;
}

DeviceCopies* Saves::device_copies() {
  if (!copies_) copies_ = zeroshard::device_copies(options_.device);
  return copies_.get();
}

bool Saves::has_room_for_staging(int64_t bytes) {
  const OffloadConfig& limits = options_.config.offload;
  if (must_stage() || (!limits.device_memory && !limits.host_memory)) return true;
  const int64_t more = bytes - plan_.ledger.current().at(Category::kCheckpointStaging, Tier::kHost);
  // The ranks do not agree in the checkpoint communicator, because a running save may be using it.
  return !on_any_rank(ranks_.all, !plan_.ledger.has_room(Tier::kHost, more), "memory for a checkpoint");
}

void Saves::plan_staging(int64_t bytes) {
  int64_t& all = plan_.bytes.at(Category::kCheckpointStaging, Tier::kHost);
  all = std::max(all, bytes);
}

void Saves::wait_for_turn(std::string_view call) {
  if (!async_saver_) return;
  constexpr auto kNoticeable = std::chrono::milliseconds(100);
  const auto start = std::chrono::steady_clock::now();
  settle_last_save();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  if (waited < kNoticeable || ranks_.all.rank() != 0) return;
  const std::string told = concat(call, " waited ", waited.count(), " ms for the checkpoint before to be written");
  if (call != kSaveCall) return log(LogLevel::kInfo, told);
  log(LogLevel::kWarning, told + ". If every save waits like this, save less often, or to a faster disk");
}

bool Saves::settle_last_save() {
  saver().await_end();  // an interruption here is not an error of the save
  try {
    saver().wait();
    return true;
  } catch (const std::exception& error) {
    if (options_.config.checkpoint.on_error == CheckpointConfig::OnError::kRaise) throw;
    tell_failed(error);
    return false;
  }
}

void Saves::tell_failed(const std::exception& error) const {
  if (ranks_.all.rank() == 0)
    log(LogLevel::kError, concat("a checkpoint was not saved, training goes on: ", error.what()));
}

void Saves::check_not_half_loaded() const {
  if (half_loaded_.empty()) return;
  std::vector<std::string> names;
  for (const auto& [state, checkpoint] : half_loaded_)
    if (names.empty() || names.back() != state.name) names.push_back(state.name);
  throw StateError(concat("load_checkpoint failed when it had read a part of ", half_loaded_.begin()->second, ": ",
                          some_of(names),
                          " may be of two checkpoints. Load a checkpoint that has all of these, with the ",
                          "same options, or make a new engine. `zeroshard checkpoint verify` tells which are whole"));
}

// Returns slices of the states of an external optimizer for this rank to save. If other ranks have the same elements of
// a state, too, each rank saves only its share of them. Throws ValueError for a state of an unknown parameter.
std::vector<StateSlice> Saves::own_share(const std::vector<TensorState>& states) const {
  std::map<std::string_view, std::pair<const ShardedGroup*, size_t>> places;
  for (const ShardedGroup& group : memory_.groups->all())
    for (size_t i = 0; i < group.num_params(); ++i) places[group.param(i).name()] = {&group, i};
  std::vector<StateSlice> slices;
  for (const TensorState& state : states) {
    StateSlice slice = to_slice(state);
    const auto at = places.find(state.name);
    ZS_CHECK(at != places.end(), "'", state.name, "' (", state.kind, ") is a state of no parameter");
    const auto& [group, index] = at->second;
    slice.trainable = true;
    if (group->place().updates_whole() || ranks_.has_replicas_of_states()) {
      const Range owned = intersect(group->layout().param(index), ranks_.saved_part(group->mine()));
      const Range mine = intersect(slice.elements, owned - group->layout().param(index).begin);
      if (mine.size() == 0) continue;
      slice.offset += (mine.begin - slice.elements.begin) * dtype_bytes(slice.dtype);
      slice.elements = mine;
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

SaveRequest Saves::make_request(const std::string& root, const std::string& tag, int64_t step,
                                const CheckpointContents& contents, const SaveOptions& save, bool staged) {
  SaveRequest request;
  request.root = root;
  request.tag = tag;
  request.step = step;
  request.latest = save.latest;
  request.locks = &locks_;
  request.keep = options_.config.checkpoint.keep;
  request.config_digest = concat(options_.config.digest());
  request.versions = {{"zeroshard", kVersion}, {"torch", TORCH_VERSION}};
  const LossScalerState& scale = pass_.scaler().state();
  const bool trains = !memory_.groups->trained().empty();
  const int skipped = pass_.progress().skipped_in_a_row();
  const SavedOptimizer kind{options_.optimizer, options_.external_optimizer};
  const Json core{{"optimizer", trains ? to_json(kind) : Json()},
                  {"loss_scale", scale.scale},
                  {"loss_scale_dynamic", pass_.scaler().dynamic()},
                  {"loss_scale_iteration", scale.iteration},
                  {"loss_scale_last_overflow", scale.last_overflow},
                  {"loss_scale_hysteresis_left", scale.hysteresis_left},
                  {"skipped_in_a_row", skipped},
                  {"excludes_frozen", save.exclude_frozen}};
  request.state = Json{{"core", core}, {"front", Json::parse(contents.state)}}.dump();
  request.rank_state = contents.rank_state;
  const auto purpose = staged ? States::Purpose::kSaveStaged : States::Purpose::kSave;
  request.slices = States(*this, purpose).slices(!save.exclude_frozen, true);
  for (StateSlice& slice : own_share(contents.optimizer)) request.slices.push_back(std::move(slice));
  for (const TensorState& buffer : contents.buffers) request.slices.push_back(to_slice(buffer));
  return request;
}

// Returns the slices of memory that the load fills: states of the engine, and the tensors that `others` returns. Adds
// the states of the engine to `chosen`. Throws ValueError if the checkpoint belongs to another model or optimizer.
std::vector<StateSlice> Saves::choose(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load,
                                      const ChooseTensors& others, std::set<StateKey>& chosen) {
  const Json state = Json::parse(manifest.state);
  if (load.accept) load.accept(state.at("front").dump());
  if (load.optimizer && !memory_.groups->trained().empty())
    check_optimizer(manifest, {options_.optimizer, options_.external_optimizer});
  const bool excludes_frozen = state.at("core").at("excludes_frozen").get<bool>();
  std::vector<StateSlice> wanted;
  std::vector<std::string> missing, kept;
  size_t fitting = 0;  // number of weights that both the engine and the checkpoint have
  std::set<std::pair<std::string_view, std::string_view>> known;
  for (StateSlice& slice : States(*this, States::Purpose::kLoad).slices(true, load.optimizer)) {
    const TensorRecord* const saved = index.find(slice.name, slice.kind);
    if (saved == nullptr) {
      const bool is_weight = slice.kind == kWeight;
      ZS_CHECK(
          is_weight || index.find(slice.name, kWeight) == nullptr, "the checkpoint has no ", slice.kind, " for '",
          slice.name,
          "': it was saved with another optimizer, or while the parameter was frozen. From Python, "
          "load_checkpoint(..., load_optimizer_states=False) takes its weights; with `zeroshard train`, start anew "
          "in another output directory");
      if (is_weight) (excludes_frozen && !slice.trainable ? kept : missing).push_back(slice.name);
      continue;
    }
    known.insert({saved->name, saved->kind});
    if (slice.kind == kWeight) ++fitting;
    ZS_CHECK(saved->shape == slice.shape, "'", slice.name, "' has the shape ", shape_text(slice.shape),
             ", in the checkpoint ", shape_text(saved->shape));
    ZS_CHECK(convertible(saved->dtype, slice.dtype), "'", slice.name, "' has the dtype ", slice.dtype,
             ", in the checkpoint ", saved->dtype);
    chosen.insert({slice.name, slice.kind});
    wanted.push_back(std::move(slice));
  }
  std::vector<std::string> unexpected;
  std::vector<TensorInfo> rest;
  for (const TensorRecord& saved : manifest.tensors) {
    if (known.contains({saved.name, saved.kind})) continue;
    if (saved.kind == kWeight) unexpected.push_back(saved.name);
    rest.push_back({saved.name, saved.kind, saved.dtype, saved.shape});
  }
  if (load.all_params) {
    ZS_CHECK(missing.empty(), "parameters that the checkpoint does not have: ", some_of(missing),
             ". To load what it has, pass load_module_strict=False");
    ZS_CHECK(unexpected.empty(), "parameters that only the checkpoint has: ", some_of(unexpected),
             ". To leave them out, pass load_module_strict=False");
  } else if (!missing.empty() || !unexpected.empty()) {
    ZS_CHECK(fitting > 0 || missing.empty() || unexpected.empty(),
             "the checkpoint has no parameter of this model, so that nothing would be loaded: the model has ",
             some_of(missing), ", the checkpoint ", some_of(unexpected));
    if (ranks_.all.rank() == 0)
      log(LogLevel::kWarning,
          concat("load_module_strict=False: the checkpoint has ", fitting, " of ",
                 fitting + missing.size() + kept.size(), " parameters of the model. ",
                 missing.empty() ? "" : concat("As they are stay ", some_of(missing), ". "),
                 unexpected.empty() ? "" : concat("Only the checkpoint has ", some_of(unexpected), ".")));
  }
  if (!kept.empty() && ranks_.all.rank() == 0)
    log(LogLevel::kInfo,
        concat("the checkpoint was saved without frozen parameters: ", some_of(kept), " stay as they are"));
  for (const TensorState& state : others(rest)) {
    const TensorRecord* const saved = index.find(state.name, state.kind);
    ZS_CHECK(saved && saved->shape == state.shape, "'", state.name, "' (", state.kind, ") has the shape ",
             shape_text(state.shape), ", in the checkpoint ", saved ? shape_text(saved->shape) : "it is missing");
    wanted.push_back(to_slice(state));
    ZS_CHECK(convertible(saved->dtype, wanted.back().dtype), "'", state.name, "' (", state.kind, ") has the dtype ",
             wanted.back().dtype, ", in the checkpoint ", saved->dtype);
  }
  return wanted;
}

void Saves::take_updates(const TensorIndex& index) {
  for (ShardedGroup* const group : memory_.groups->trained()) {
    for (size_t i = 0; i < group->num_params(); ++i) {
      const TensorRecord* const saved = index.find(group->param(i).name(), kWeight);
      if (saved) group->update_counts()[i] = saved->updates;
    }
  }
}

void Saves::take_scale(const Manifest& manifest) {
  const Json core = Json::parse(manifest.state).at("core");
  pass_.progress().set_skipped_in_a_row(core.at("skipped_in_a_row").get<int>());
  // The scale is taken only from a run with dynamic scaling, because a fixed scale says nothing about gradients.
  // Imported checkpoints do not have the key loss_scale_dynamic. In them, counted iterations show that scaling was
  // dynamic.
  const auto iteration = core.at("loss_scale_iteration").get<int64_t>();
  if (!core.value("loss_scale_dynamic", iteration > 0)) return;
  pass_.scaler().load({.scale = core.at("loss_scale").get<double>(),
                       .iteration = iteration,
                       .last_overflow = core.at("loss_scale_last_overflow").get<int64_t>(),
                       .hysteresis_left = core.at("loss_scale_hysteresis_left").get<int>()});
}

NamedValues Saves::half_loaded() const {
  NamedValues left;
  for (const auto& [state, checkpoint] : half_loaded_)
    if (state.kind == kWeight) left.emplace_back(state.name, checkpoint);
  return left;
}

void Saves::start(SaveRequest request, int64_t staging_bytes) {
  staging_planned_ = staging_bytes;
  plan_staging(staging_bytes);
  const auto copy = [](void* to, const void* from, int64_t bytes) { copy_to_host(to, from, bytes, at::kCPU); };
  saver().start(std::move(request), copy, staging_bytes);
}

void Saves::retire() {
  async_saver_.reset();  // waits for a running save
  locks_ = DirectoryLocks();
}

}  // namespace zeroshard
