#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "checkpoint/load.h"
#include "checkpoint/store.h"
#include "checkpoint/told.h"
#include "checkpoint/uploads.h"
#include "engine/consensus.h"
#include "engine/impl.h"
#include "file/hash.h"
#include "plan/buffer_sizes.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSave = Saves::kSaveCall, kLoad = "load_checkpoint";

// Returns the absolute path, because the working directory may change before the background thread writes. As far as
// the path exists, resolves links and ".." like the kernel, so that ranks with different working directories get equal
// texts for the same directory. Returns `path` itself if this fails.
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

// Throws ValueError if reading a damaged checkpoint has overwritten a state that the next older checkpoint does not
// replace. `overwritten` has the damaged checkpoint of each overwritten state. `chosen` has the states that the older
// checkpoint replaces.
void check_replaces(const std::map<StateKey, std::string>& overwritten, const std::set<StateKey>& chosen) {
  for (const auto& [state, damaged] : overwritten) {
    ZS_CHECK(chosen.contains(state), damaged, " is damaged, and reading it has overwritten '", state.name, "' (",
             state.kind,
             "). The next older checkpoint does not have this state. Make a new engine, and load the older ",
             "checkpoint by its tag");
  }
}

}  // namespace

NamedValues Engine::half_loaded() const {
  return impl_->saves->half_loaded();
}

void Engine::save_checkpoint(const std::string& root, const std::string& tag, int64_t step,
                             const CheckpointContents& contents, const SaveOptions& save) {
  Impl& impl = *impl_;
  impl.check_in_use();
  Saves& saves = *impl.saves;
  const bool wants_async = save.async.value_or(impl.options.config.checkpoint.async);
  const int64_t staging = checkpoint_staging_bytes(impl.plan.layouts, impl.plan.options) + bytes_of(contents);
  // If a group has states in files and others on a device, a thread that reads them during training would need a copy
  // of those on the device. So a save of such states does not run in the background.
  const bool at_once = std::ranges::any_of(impl.memory->groups->trained(), [](const ShardedGroup* group) {
    return group->place().is_split_beside_device(group->layout());
  });
  const bool async = wants_async && !at_once && saves.has_room_for_staging(staging);
  const bool staged = async || saves.must_stage();
  // Users' writes to parameters must get into the master weights that are saved. Master weights in memory take the
  // writes here. If master weights are in files, a save that is not staged takes the writes while it reads these master
  // weights: see state_data(). A staged save reads them in the saver's thread, when users may already be writing again.
  // So they take the writes here, too, except those of 32-bit parameters, because a staged save saves these parameters
  // instead of their master weights.
  const auto of_master = staged ? UserWrites::OfMaster::kAllButFp32InFiles : UserWrites::OfMaster::kInMemory;
  SaveRequest request;
  // Runs everything that may fail on one rank alone, before the other ranks write or wait in the background.
  run_together(kSave, [&] {
    publish_update();
    impl.writes->take_all(of_master);
    if (impl.pass->progress().is_in_pass() || impl.pass->progress().has_open_gradients())
      throw StateError("save_checkpoint within a backward pass: call it when the pass has ended");
    impl.check_whole();
    check_tag(tag);
    request = saves.make_request(from_root(root), tag, step, contents, save, staged);
    if (staged) saves.saver().prepare(request, staging);
  });
  if (!staged) {
    try {
      return tell_saved(request, zeroshard::save_checkpoint(request, impl.ranks.checkpoint(), posix_io()));
    } catch (const IoError& error) {  // if the caller asked for a background save, checkpoint.on_error applies
      if (!wants_async || impl.options.config.checkpoint.on_error == CheckpointConfig::OnError::kRaise) throw;
      return saves.tell_failed(error);
    }
  }
  saves.start(std::move(request), staging);
  if (!async) saves.saver().wait();
}

bool Engine::wait_for_checkpoint() {
  impl_->ranks.check_caller();
  return !impl_->saves->has_saver() || impl_->saves->settle_last_save();
}

void Engine::report_failed_save() {
  wait_for_checkpoint();
}

void Engine::run_together(std::string_view call, const std::function<void()>& step) {
  impl_->ranks.check_caller();
  // The ranks meet in the communicator that also serves steps. So if one rank comes here while others are in a step,
  // the error names this rank and the calls of the others.
  impl_->ranks.all.barrier(call);
  impl_->saves->wait_for_turn(call);  // a running save uses the checkpoint communicator
  zeroshard::together(impl_->ranks.checkpoint(), "checkpoint", step);
}

std::vector<bool> Engine::differ_among_ranks(const std::vector<at::Tensor>& tensors) {
  // `extremes` has each hash and its complement. The maximum of the complements is the complement of the lowest hash.
  // The highest and the lowest hash are equal exactly if all hashes are.
  std::vector<int64_t> extremes;
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
  impl.check_in_use();
  Saves& saves = *impl.saves;
  const std::string root = from_root(path);
  run_together(kLoad, [&] {
    impl.writes->check_no_change_begun("load_checkpoint()");
    AsyncSaver::await_saves_in(root);  // also waits for saves of other engines of the process
    impl.publish_before_load(has_pending_gradients());
    impl.writes->take_all();  // the load may leave some of the written parameters as they are
    if (has_pending_gradients())
      throw StateError(
          "load_checkpoint between a backward pass and its step: gradients of the parameters before would be added to "
          "those of the loaded ones. Load after step() has applied them, or into a new engine");
    // Ends gathers that a forward without a backward may have left.
    for (size_t unit = 0; unit < impl.plan.layouts.size(); ++unit) impl.executor->end_gather(unit);
    impl.memory->groups->await_copies();  // because the load writes to states on the host
    for (const ShardedGroup* const group : impl.memory->groups->trained()) group->forget_parameters();
  });
  Uploads uploads(impl.plan.ledger, saves.device_copies());
  std::set<StateKey> chosen;                    // states that are read from the checkpoint that is tried
  std::map<StateKey, std::string> overwritten;  // overwritten states, each with the checkpoint that was read last
  const auto begin_overwriting = [&](const std::string& tag) {
    for (const StateKey& state : chosen) saves.begin_overwriting(state, overwritten[state] = concat(root, "/", tag));
  };
  const LoadRequest request{root,
                            load.tag,
                            load.strict,
                            [&](const Manifest& manifest, const TensorIndex& index) {
                              chosen.clear();
                              std::vector<StateSlice> wanted = saves.choose(manifest, index, load, others, chosen);
                              check_replaces(overwritten, chosen);
                              const auto is_uploaded = [](const StateSlice& slice) {
                                return slice.bytes() > 0 && slice.on_host() == nullptr;
                              };
                              if (std::any_of(wanted.begin(), wanted.end(), is_uploaded))
                                saves.plan_uploads(Uploads::kBytes);
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
  if (impl.ranks.all.rank() == 0) tell_loaded(root, loaded->tag, loaded->manifest, taken.count());
  if (load.optimizer) saves.take_updates(TensorIndex(loaded->manifest));
  impl.update->update_and_refresh([](ShardedGroup& group) { group.copy_master_to_parameters(); });
  impl.writes->accept_loaded();
  if (load.optimizer) {
    saves.take_scale(loaded->manifest);
    impl.pass->progress().restore({}, loaded->manifest.step);
  }
  LoadedState state{loaded->tag, loaded->manifest.step, Json::parse(loaded->manifest.state).at("front").dump(),
                    loaded->manifest.rank_states, load.optimizer};
  if (load.finish) together(impl.ranks.checkpoint(), "checkpoint", [&] { load.finish(state); });
  for (const StateKey& each : chosen) saves.end_overwriting(each);
  return state;
}

}  // namespace zeroshard
