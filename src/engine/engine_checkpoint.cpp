#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "base/shape_text.h"
#include "base/shown_text.h"
#include "checkpoint/agreement.h"
#include "checkpoint/convert.h"
#include "checkpoint/load.h"
#include "checkpoint/store.h"
#include "checkpoint/told.h"
#include "device/host_copy.h"
#include "device/safetensors_dtype.h"
#include "engine/consensus.h"
#include "engine/impl.h"
#include "engine/saved_optimizer.h"
#include "engine/state_data.h"
#include "engine/uploads.h"
#include "file/hash.h"
#include "plan/state_rules.h"
#include "zeroshard/version.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr char kWeight[] = "weight";
constexpr std::string_view kSave = "save_checkpoint", kLoad = "load_checkpoint";

// Returns the absolute path, because the working directory may change before the background thread writes. Links and
// ".." are resolved like by the kernel, as far as the path exists, because ranks in different directories may mean the
// same path.
std::string from_root(const std::string& path) {
  std::error_code failed;
  std::filesystem::path full = std::filesystem::absolute(path, failed);
  if (!failed) full = std::filesystem::weakly_canonical(full, failed);
  return failed ? path : full.string();
}

int64_t bytes_of(const CheckpointContents& contents) {
  int64_t bytes = 0;
  for (const TensorState& state : contents.buffers) bytes += int64_t(state.tensor.nbytes());
  for (const TensorState& state : contents.optimizer) bytes += int64_t(state.tensor.nbytes());
  return bytes;
}

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

// Returns whether some states are in files and the others on a device. A thread that reads such states during training
// would need a copy of the device's part, so they are saved synchronously.
bool are_split_beside_device(const ShardedGroup& group, c10::Device device) {
  const GroupPlacement& place = group.place();
  return !device.is_cpu() && place.state_tier() == Tier::kFile &&
         place.numel_of_host(group.layout()) < group.updated().size();
}

// A damaged checkpoint was partly read. The checkpoint that is `chosen` now must replace everything that was
// overwritten.
void check_replaces(const std::map<StateKey, std::string>& overwritten, const std::set<StateKey>& chosen) {
  for (const auto& [state, damaged] : overwritten) {
    ZS_CHECK(chosen.contains(state), damaged, " is damaged, and reading it has overwritten '", state.name, "' (",
             state.kind, "), which the next older checkpoint does not have. Make a new engine, and load that one by ",
             "its tag");
  }
}

}  // namespace

// Lists the parameters and states of the engine, each with access to its data.
class Engine::Impl::States {
 public:
  // kSaveHeld: training continues, and its writers wait while the save reads. Each slice's data holds its state from
  // its creation on.
  enum class Purpose : uint8_t { kSave, kSaveHeld, kLoad };
  States(Impl& impl, Purpose purpose) : impl_(impl), purpose_(purpose) {}

  // Returns slices of weights and, for trainable parameters, of the optimizer's states. When saving, every rank returns
  // its own share; when loading, everything that it keeps.
  std::vector<StateSlice> slices(bool frozen, bool optimizer) const {
    std::vector<StateSlice> result;
    const auto add_all = [&](const ShardedGroup& group) {
      if (group.is_trained() || frozen) add_weights(group, result);
      if (group.is_trained() && optimizer) add_moments(group, result);
    };
    if (!impl_.memory->has_files() || purpose_ == Purpose::kLoad) {
      for (const ShardedGroup& group : impl_.memory->groups->all()) add_all(group);
      return result;
    }
    // The state that the next update changes first is written first, so that the update waits as little as possible.
    for (const bool is_trained : {true, false}) {
      for (const size_t unit : impl_.reducer->order_of_forward())
        for (const ShardedGroup& group : impl_.memory->groups->of_unit(unit))
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
      const Range own = saves() ? group.mine() : state.positions;
      const Range range = intersect(group.layout().param(i), own);
      StateSlice slice;
      slice.name = param.name();
      slice.aliases.assign(param.names.begin() + 1, param.names.end());
      slice.kind = state.kind;
      slice.dtype = safetensors_dtype(type_of(group, i, state.dtype));
      slice.shape = param.shape;
      slice.trainable = param.requires_grad;
      slice.updates = group.updates()[i];
      if (range.size() > 0) {
        const int64_t start = group.layout().param(i).begin;
        slice.elements = {range.begin - start, range.end - start};
        slice.data = state.data;
        slice.offset = (range.begin - state.positions.begin) * element_size(state.dtype);
      } else if (saves() && (impl_.ranks.gather.rank() != 0 || param.numel() > 0)) {
        continue;  // another rank saves it
      }
      to.push_back(std::move(slice));
    }
  }

  // The layout knows the dtype of floating-point weights, but only the width of others.
  at::ScalarType type_of(const ShardedGroup& group, size_t index, DType dtype) const {
    if (is_floating_point(dtype)) return to_scalar_type(dtype);
    const auto unit = size_t(&group.unit() - impl_.plan.layouts.data());
    return impl_.executor->unit(unit).tensors(group.flat().params[index]).front().scalar_type();
  }

  void add_weights(const ShardedGroup& group, std::vector<StateSlice>& to) const {
    // Users write to whole parameters without waiting, so whole parameters are copied. Only the engine writes to
    // shards.
    const bool is_copied = is_held(group) && group.is_open() && group.flat().dtype == DType::kFloat32;
    if (group.has_master() && !is_copied)
      return add(group, {kWeight, DType::kFloat32, data_of(group, kMasterWeights), group.updated()}, to);
    const Range positions = group.is_trained() ? group.updated() : group.kept();
    add(group, {kWeight, group.flat().dtype, weights_of(group, is_copied), positions}, to);
  }

  std::shared_ptr<SliceData> weights_of(const ShardedGroup& group, bool is_copied) const {
    const bool are_held = purpose_ == Purpose::kSaveHeld && group.parameters().hold() != nullptr;
    return are_held || (is_held(group) && !is_copied) ? held_data(group) : parameter_data(group);
  }

  void add_moments(const ShardedGroup& group, std::vector<StateSlice>& to) const {
    const std::vector<std::string> names = moment_names(impl_.options.optimizer, group.flat().is_matrix);
    const int slots = std::min(impl_.plan.options.optimizer_slots, int(names.size()));
    for (int slot = 0; slot < slots; ++slot)
      add(group, {names.at(size_t(slot)), DType::kFloat32, data_of(group, slot), group.updated()}, to);
  }

  bool saves() const { return purpose_ != Purpose::kLoad; }
  bool is_held(const ShardedGroup& group) const {
    return purpose_ == Purpose::kSaveHeld && group.is_trained() && group.states().hold() != nullptr;
  }
  std::shared_ptr<SliceData> data_of(const ShardedGroup& group, int state) const {
    // Users write without waiting to parameters that are their own master weights.
    const bool are_parameters = state == kMasterWeights && !group.place().master_weights.has_rest;
    return is_held(group) ? held_data(group, state) : state_data(group, state, is_engines() && !are_parameters);
  }

  // An external optimizer writes to the tensors that it once got.
  bool is_engines() const { return impl_.options.external_optimizer.empty(); }

  Impl& impl_;
  Purpose purpose_;
};

AsyncSaver& Engine::Impl::saver() {
  if (!async_saver)
    async_saver = std::make_unique<AsyncSaver>(ranks.checkpoint(), posix_io(), plan.ledger, device_copies());
  return *async_saver;
}

DeviceCopies* Engine::Impl::device_copies() {
  if (!copies) copies = zeroshard::device_copies(options.device);
  return copies.get();
}

// Agrees on the answer over all ranks.
bool Engine::Impl::has_room_for_staging(int64_t bytes) {
  const OffloadConfig& limits = options.config.offload;
  if (must_stage() || (!limits.device_memory && !limits.host_memory)) return true;
  const int64_t more = bytes - plan.ledger.current().at(Category::kCheckpointStaging, Tier::kHost);
  const int64_t no_room = plan.ledger.has_room(Tier::kHost, more) ? 0 : 1;
  return agree_on_flags(ranks.reduce, {no_room})[0] == 0;  // a running save may be using the checkpoint communicator
}

void Engine::Impl::plan_staging(int64_t bytes) {
  int64_t& all = plan.bytes.at(Category::kCheckpointStaging, Tier::kHost);
  all = std::max(all, bytes);
}

// Waits for a running save, and logs it, because the user should know if saves come faster than the disks write.
void Engine::Impl::wait_for_turn(std::string_view call) {
  if (!async_saver) return;
  constexpr auto kNoticeable = std::chrono::milliseconds(100);
  const auto start = std::chrono::steady_clock::now();
  report_failed_save();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  if (waited < kNoticeable || ranks.reduce.rank() != 0) return;
  const std::string told = concat(call, " waited ", waited.count(), " ms for the checkpoint before to be written");
  if (call != kSave) return log(LogLevel::kInfo, told);
  log(LogLevel::kWarning, told + ". If every save waits like this, save less often, or to a faster disk");
}

// Called on every rank at the same step. If the save failed on some rank, the thread of every rank has learned it.
bool Engine::Impl::report_failed_save() {
  saver().await_end();  // an interruption here is not an error of the save
  try {
    saver().wait();
    return true;
  } catch (const std::exception& error) {
    if (options.config.checkpoint.on_error == CheckpointConfig::OnError::kRaise) throw;
    tell_failed_save(error);
    return false;
  }
}

void Engine::Impl::tell_failed_save(const std::exception& error) const {
  if (ranks.reduce.rank() == 0)
    log(LogLevel::kError, concat("a checkpoint was not saved, training goes on: ", error.what()));
}

void Engine::Impl::check_whole() const {
  ranks.check_caller();
  if (!in_use)
    throw StateError("this engine has returned its parameters, and cannot be used any more: make another one");
  if (half_loaded.empty()) return;
  std::vector<std::string> names;
  for (const auto& [state, checkpoint] : half_loaded)
    if (names.empty() || names.back() != state.name) names.push_back(state.name);
  throw StateError(concat("load_checkpoint failed when it had read a part of ", half_loaded.begin()->second, ": ",
                          some_of(names), " may be of two checkpoints. Load one that is whole (zeroshard checkpoint ",
                          "verify tells) and has them, with the same options, or make a new engine"));
}

NamedValues Engine::half_loaded() const {
  NamedValues left;
  for (const auto& [state, checkpoint] : impl_->half_loaded)
    if (state.kind == kWeight) left.emplace_back(state.name, checkpoint);
  return left;
}

// If every rank's optimizer has a whole state, each rank saves only its share.
std::vector<StateSlice> Engine::Impl::own_share(const std::vector<TensorState>& states) const {
  std::map<std::string_view, std::pair<const ShardedGroup*, size_t>> places;
  for (const ShardedGroup& group : memory->groups->all())
    for (size_t i = 0; i < group.num_params(); ++i) places[group.param(i).name()] = {&group, i};
  std::vector<StateSlice> slices;
  for (const TensorState& state : states) {
    StateSlice slice = to_slice(state);
    const auto at = places.find(state.name);
    ZS_CHECK(at != places.end(), "'", state.name, "' (", state.kind, ") is a state of no parameter");
    const auto& [group, index] = at->second;
    slice.trainable = true;
    if (group->place().updates_whole()) {
      const Range owned = group->layout().owned(index, ranks.gather.rank());
      const int64_t start = group->layout().param(index).begin;
      const Range mine = intersect(slice.elements, {owned.begin - start, owned.end - start});
      if (mine.size() == 0) continue;
      slice.offset += (mine.begin - slice.elements.begin) * dtype_bytes(slice.dtype);
      slice.elements = mine;
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

SaveRequest Engine::Impl::make_request(const std::string& root, const std::string& tag, int64_t step,
                                       const CheckpointContents& contents, const SaveOptions& save, bool held) {
  SaveRequest request;
  request.root = root;
  request.tag = tag;
  request.step = step;
  request.latest = save.latest;
  request.locks = &save_locks;
  request.keep = options.config.checkpoint.keep;
  request.config_digest = concat(options.config.digest());
  request.versions = {{"zeroshard", kVersion}, {"torch", TORCH_VERSION}};
  const LossScalerState& scale = scaler.state();
  const bool trains = !memory->groups->trained().empty();
  const int skipped = progress.skipped_in_a_row();
  const SavedOptimizer kind{options.optimizer, options.external_optimizer};
  const Json core{{"optimizer", trains ? to_json(kind) : Json()},
                  {"loss_scale", scale.scale},
                  {"loss_scale_dynamic", scaler.dynamic()},
                  {"loss_scale_iteration", scale.iteration},
                  {"loss_scale_last_overflow", scale.last_overflow},
                  {"loss_scale_hysteresis_left", scale.hysteresis_left},
                  {"skipped_in_a_row", skipped},
                  {"excludes_frozen", save.exclude_frozen}};
  request.state = Json{{"core", core}, {"front", Json::parse(contents.state)}}.dump();
  request.rank_state = contents.rank_state;
  const auto purpose = held ? States::Purpose::kSaveHeld : States::Purpose::kSave;
  request.slices = States(*this, purpose).slices(!save.exclude_frozen, true);
  for (StateSlice& slice : own_share(contents.optimizer)) request.slices.push_back(std::move(slice));
  for (const TensorState& buffer : contents.buffers) request.slices.push_back(to_slice(buffer));
  return request;
}

// Chooses the target of each tensor of the checkpoint, and lists the engine's states among them. Throws ValueError if
// the checkpoint belongs to another model or optimizer.
std::vector<StateSlice> Engine::Impl::choose(const Manifest& manifest, const TensorIndex& index,
                                             const LoadOptions& load, const ChooseTensors& others,
                                             std::set<StateKey>& chosen) {
  const Json state = Json::parse(manifest.state);
  if (load.accept) load.accept(state.at("front").dump());
  if (load.optimizer && !memory->groups->trained().empty())
    check_optimizer(manifest, {options.optimizer, options.external_optimizer});
  const bool excludes_frozen = state.at("core").at("excludes_frozen").get<bool>();
  std::vector<StateSlice> wanted;
  std::vector<std::string> missing, kept;
  size_t fitting = 0;  // number of weights that both have
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
    if (ranks.reduce.rank() == 0)
      log(LogLevel::kWarning,
          concat("load_module_strict=False: the checkpoint has ", fitting, " of ",
                 fitting + missing.size() + kept.size(), " parameters of the model. ",
                 missing.empty() ? "" : concat("As they are stay ", some_of(missing), ". "),
                 unexpected.empty() ? "" : concat("Only the checkpoint has ", some_of(unexpected), ".")));
  }
  if (!kept.empty() && ranks.reduce.rank() == 0)
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

void Engine::Impl::take_loaded(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load) {
  const Json core = Json::parse(manifest.state).at("core");
  for (ShardedGroup* const group : memory->groups->trained()) {
    for (size_t i = 0; load.optimizer && i < group->num_params(); ++i) {
      const TensorRecord* const saved = index.find(group->param(i).name(), kWeight);
      if (saved) group->updates()[i] = saved->updates;
    }
  }
  refresh([](ShardedGroup& group) { group.publish_master(); });
  for (size_t u = 0; u < plan.layouts.size(); ++u)
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) watch->tell_autograd(u, i);
  watch->accept_all();
  watch->forget_readings();
  if (!load.optimizer) return;
  progress.set_skipped_in_a_row(core.at("skipped_in_a_row").get<int>());
  // The scale of a run without dynamic scaling says nothing about gradients. Imported checkpoints do not store this
  // flag, but a dynamic scaler has counted iterations.
  const auto iteration = core.at("loss_scale_iteration").get<int64_t>();
  if (!core.value("loss_scale_dynamic", iteration > 0)) return;
  scaler.load({.scale = core.at("loss_scale").get<double>(),
               .iteration = iteration,
               .last_overflow = core.at("loss_scale_last_overflow").get<int64_t>(),
               .hysteresis_left = core.at("loss_scale_hysteresis_left").get<int>()});
}

void Engine::save_checkpoint(const std::string& root, const std::string& tag, int64_t step,
                             const CheckpointContents& contents, const SaveOptions& save) {
  Impl& impl = *impl_;
  const bool wants_async = save.async.value_or(impl.options.config.checkpoint.async);
  const int64_t staging = checkpoint_staging_bytes(impl.plan.layouts, impl.plan.options) + bytes_of(contents);
  const bool at_once = std::ranges::any_of(impl.memory->groups->trained(), [&](const ShardedGroup* group) {
    return are_split_beside_device(*group, impl.options.device);
  });
  const bool async = wants_async && !at_once && impl.has_room_for_staging(staging);
  const bool staged = async || impl.must_stage();
  // The save takes users' writes into master weights in files while it reads them: see state_data(). A background save
  // cannot, because users may already be writing again. 32-bit parameters are saved themselves.
  const auto of_master = staged ? Impl::OfMaster::kAllButSaved : Impl::OfMaster::kInMemory;
  SaveRequest request;
  // Runs everything that may fail on one rank alone, before the other ranks write or wait in the background.
  run_together(kSave, [&] {
    publish_update();
    impl.take_all_writes(of_master);
    if (impl.progress.is_in_pass() || impl.progress.has_open_gradients())
      throw StateError("save_checkpoint within a backward pass: call it when the pass has ended");
    impl.check_whole();
    check_tag(tag);
    request = impl.make_request(from_root(root), tag, step, contents, save, /*held=*/staged);
    if (staged) impl.saver().prepare(request, staging);
  });
  if (!staged) {
    try {
      return tell_saved(request, zeroshard::save_checkpoint(request, impl.ranks.checkpoint(), posix_io()));
    } catch (const IoError& error) {  // handled like an error of a save in the background
      if (!wants_async || impl.options.config.checkpoint.on_error == CheckpointConfig::OnError::kRaise) throw;
      return impl.tell_failed_save(error);
    }
  }
  impl.staging_planned = staging;
  impl.plan_staging(staging);
  const auto copy = [](void* to, const void* from, int64_t bytes) { copy_to_host(to, from, bytes, at::kCPU); };
  impl.saver().start(std::move(request), copy, staging);
  if (!async) impl.saver().wait();
}

bool Engine::wait_for_checkpoint() {
  impl_->ranks.check_caller();
  return !impl_->async_saver || impl_->report_failed_save();
}

void Engine::report_failed_save() {
  wait_for_checkpoint();
}

void Engine::run_together(std::string_view call, const std::function<void()>& step) {
  impl_->ranks.check_caller();
  // The ranks wait in the communicator that also serves steps. If a rank comes here alone, the error then names this
  // rank and the calls of the other ranks.
  impl_->ranks.reduce.barrier(call);
  impl_->wait_for_turn(call);  // until then the saver uses the checkpoint communicator
  zeroshard::together(impl_->ranks.checkpoint(), "checkpoint", step);
}

std::vector<bool> Engine::differ_among_ranks(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> extremes;  // hashes and their complements: all h are equal if the highest h is the lowest
  run_together(kSave, [&] {
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor host = tensor.detach().cpu().contiguous();
      const auto hash = int64_t(hash_bytes(host.const_data_ptr(), int64_t(host.nbytes())));
      extremes.insert(extremes.end(), {hash, ~hash});
    }
  });
  Comm& comm = impl_->ranks.checkpoint();
  if (!extremes.empty())
    comm.all_reduce({extremes.data(), int64_t(extremes.size()), DType::kOther8}, ReduceOp::kMax, "buffers")->wait();
  std::vector<bool> result;
  for (size_t i = 0; i < extremes.size(); i += 2) result.push_back(extremes[i] != ~extremes[i + 1]);
  return result;
}

std::optional<LoadedState> Engine::load_checkpoint(const std::string& path, const LoadOptions& load,
                                                   const ChooseTensors& others) {
  Impl& impl = *impl_;
  const std::string root = from_root(path);
  run_together(kLoad, [&] {
    impl.check_no_change_begun("load_checkpoint()");
    AsyncSaver::await_saves_in(root);  // waits for other engines of the process
    impl.publish_before_load(has_pending_gradients());
    impl.take_all_writes();  // also takes writes to states that are not loaded
    if (has_pending_gradients())
      throw StateError(
          "load_checkpoint between a backward pass and its step: gradients of the parameters before would be added to "
          "those of the loaded ones. Load after step() has applied them, or into a new engine");
    // A pass without a backward may have left gathers.
    for (size_t unit = 0; unit < impl.plan.layouts.size(); ++unit) impl.executor->end_gather(unit);
    impl.memory->groups->await_copies();  // files are read into states on the host
    for (const ShardedGroup* const group : impl.memory->groups->trained()) group->forget_parameters();
  });
  Uploads uploads(impl.plan.ledger, impl.device_copies());
  std::set<StateKey> chosen;                    // states of the current checkpoint
  std::map<StateKey, std::string> overwritten;  // states overwritten by this call
  const auto begin_overwriting = [&](const std::string& tag) {
    for (const StateKey& state : chosen) overwritten[state] = impl.half_loaded[state] = concat(root, "/", tag);
  };
  const LoadRequest request{root,
                            load.tag,
                            load.strict,
                            [&](const Manifest& manifest, const TensorIndex& index) {
                              chosen.clear();
                              std::vector<StateSlice> wanted = impl.choose(manifest, index, load, others, chosen);
                              check_replaces(overwritten, chosen);
                              const auto is_uploaded = [](const StateSlice& slice) {
                                return slice.bytes() > 0 && slice.on_host() == nullptr;
                              };
                              if (std::any_of(wanted.begin(), wanted.end(), is_uploaded))
                                impl.plan_staging(impl.staging_planned + Uploads::kBytes);
                              return wanted;
                            },
                            begin_overwriting,
                            concat(load.all_params ? "all" : "some", " parameters ",
                                   load.optimizer ? "with" : "without", " optimizer states"),
                            &uploads,
                            load.may_be_first};
  const auto start = std::chrono::steady_clock::now();
  const auto loaded = zeroshard::load_checkpoint(request, impl.ranks.checkpoint(), posix_io());
  if (!loaded) return std::nullopt;
  for (const std::string& part : load.takes) chosen.insert({part, "of the caller"});
  begin_overwriting(loaded->tag);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  if (impl.ranks.reduce.rank() == 0) tell_loaded(root, loaded->manifest, taken.count());
  impl.take_loaded(loaded->manifest, TensorIndex(loaded->manifest), load);
  if (load.optimizer) impl.progress.restore({}, loaded->manifest.step);
  LoadedState state{loaded->tag, loaded->manifest.step, Json::parse(loaded->manifest.state).at("front").dump(),
                    loaded->manifest.rank_states, load.optimizer};
  if (load.finish) together(impl.ranks.checkpoint(), "checkpoint", [&] { load.finish(state); });
  for (const StateKey& each : chosen) impl.half_loaded.erase(each);
  return state;
}

}  // namespace zeroshard
