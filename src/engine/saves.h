#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/async_saver.h"
#include "checkpoint/device_copies.h"
#include "checkpoint/manifest.h"
#include "engine/engine_plan.h"
#include "engine/memory.h"
#include "engine/pass.h"
#include "engine/ranks.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Identifies the weights of a parameter or a state of its optimizer by the names that checkpoints use.
struct StateKey {
  std::string name, kind;
  auto operator<=>(const StateKey&) const = default;
};

// Prepares the saves and loads of an engine: lists the states, and chooses those that a load takes. Owns the saver,
// which can write in the background. Remembers which states a load has begun, but not finished, to overwrite.
class Saves {
 public:
  static constexpr std::string_view kSaveCall = "save_checkpoint";  // the name of the user's call, for messages

  // All must outlive it.
  Saves(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks, Memory& memory, Executor& executor,
        Reducer& reducer, Pass& pass)
      : options_(options),
        plan_(plan),
        ranks_(ranks),
        memory_(memory),
        executor_(executor),
        reducer_(reducer),
        pass_(pass) {}

  AsyncSaver& saver();
  // Creates the object at the first call. Returns null on the CPU.
  DeviceCopies* device_copies();
  // Returns whether saver() was called, as each staged save does.
  bool has_saver() const { return async_saver_ != nullptr; }
  bool busy() const { return async_saver_ && async_saver_->busy(); }
  bool failed() const { return async_saver_ && async_saver_->failed(); }
  // Waits for a running save, then frees the memory of saves and gives up the locks of their directories.
  void retire();

  // Returns whether every save goes through staging memory. If not, only saves in the background go through it, and
  // other saves write the state to files directly from where it is.
  bool must_stage() const { return !options_.device.is_cpu() && !memory_.has_files(); }
  // Returns whether every rank may have `bytes` of staging memory within its limits. Returns true without asking the
  // other ranks if saves must be staged, or if no key limits memory. Otherwise collective.
  bool has_room_for_staging(int64_t bytes);
  // Raises the planned host memory for copies of checkpoints to at least this many bytes.
  void plan_staging(int64_t bytes);
  // Starts a save in the background. saver().prepare() must have been called with the same arguments.
  void start(SaveRequest request, int64_t staging_bytes);
  // Plans memory for states that a load uploads to a device, in addition to the memory of the most recent save.
  void plan_uploads(int64_t bytes) { plan_staging(staging_planned_ + bytes); }
  // Waits for a running save, and treats its error as settle_last_save() does. Logs a noticeable wait, because the user
  // should know if saves come faster than the disks write. `call` is the user's call that has to wait.
  void wait_for_turn(std::string_view call);
  // Waits for a running save, and returns whether the last save has succeeded. If it failed on some rank, throws its
  // error, or with on_error "warn" logs the error and returns false. Must be called on every rank at the same step.
  // Then all ranks do the same, because the saver's threads of all ranks know of the failure.
  bool settle_last_save();
  void tell_failed(const std::exception& error) const;

  // If `staged` is true, the saver's thread reads states in files itself, and updates wait before they overwrite states
  // that the thread has not read yet.
  SaveRequest make_request(const std::string& root, const std::string& tag, int64_t step,
                           const CheckpointContents& contents, const SaveOptions& save, bool staged);
  std::vector<StateSlice> choose(const Manifest& manifest, const TensorIndex& index, const LoadOptions& load,
                                 const ChooseTensors& others, std::set<StateKey>& chosen);
  // These functions complete the load of a checkpoint whose states were read. take_updates() takes the number of
  // updates of each parameter that is in the checkpoint. take_scale() takes the number of steps that were skipped in a
  // row and, if the saved run had a dynamic loss scale, the loss scale.
  void take_updates(const TensorIndex& index);
  void take_scale(const Manifest& manifest);

  // Remembers that a load overwrites this state from `checkpoint`. Until end_overwriting(), the state may be partly old
  // and partly from the checkpoint.
  void begin_overwriting(const StateKey& state, const std::string& checkpoint) { half_loaded_[state] = checkpoint; }
  void end_overwriting(const StateKey& state) { half_loaded_.erase(state); }
  // Throws StateError if a load failed half way, and later loads have not yet replaced all states that the failed load
  // had begun to overwrite.
  void check_not_half_loaded() const;
  NamedValues half_loaded() const;

 private:
  class States;
  std::vector<StateSlice> own_share(const std::vector<TensorState>& states) const;

  const EngineOptions& options_;
  EnginePlan& plan_;
  const Ranks& ranks_;
  Memory& memory_;
  Executor& executor_;
  Reducer& reducer_;
  Pass& pass_;
  DirectoryLocks locks_;                         // locks of directories that this engine has saved to
  std::unique_ptr<DeviceCopies> copies_;         // null on the CPU, and before the first device_copies()
  int64_t staging_planned_ = 0;                  // bytes that the last save planned for async_saver_
  std::map<StateKey, std::string> half_loaded_;  // the states of begin_overwriting(), each with its checkpoint
  std::unique_ptr<AsyncSaver> async_saver_;      // null before the first save; the last member, because it uses others
};

}  // namespace zeroshard
