#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/held_values.h"
#include "engine/memory.h"
#include "engine/ranks.h"
#include "engine/write_watch.h"
#include "optim/sharded_optimizer.h"

namespace zeroshard {

// Takes what users write to parameters between passes, or refuses it on all ranks.
class UserWrites {
 public:
  // All must outlive it.
  UserWrites(const Ranks& ranks, Memory& memory, Executor& executor, const ShardedOptimizer& optimizer)
      : ranks_(ranks), memory_(memory), executor_(executor), optimizer_(optimizer), watch_(executor), held_(executor) {}

  // Gathers units until release(): see Engine::gather() and Engine::release().
  void gather(const std::vector<size_t>& units, HeldValues::Purpose purpose);
  void release(const std::vector<size_t>& units, int modify_rank);
  // Throws StateError if some unit is gathered to be modified. `call` is the name of the user's call, which would
  // change the parameters, too.
  void check_no_change_begun(const char* call) const;

  bool any_written() const { return watch_.any_written(); }
  // Accepts writes to units that stay whole if all ranks have made the same writes. Copies accepted writes to
  // kPersistent units to the shards of these units. Throws StateError on all ranks if there are other writes. The
  // master weights take accepted writes later (take_to_groups()). `written_somewhere` says whether a user has written
  // on some rank. Collective if it is true.
  void take(bool written_somewhere);
  // Selects the master weights that take writes. kInMemory selects those of groups whose states are all in one piece of
  // memory. kAllButFp32InFiles also selects the others, except those of 32-bit parameters whose states are in files,
  // because a background save reads these parameters instead of their master weights.
  enum class OfMaster : uint8_t { kNone, kInMemory, kAllButFp32InFiles, kAll };
  // Calls take() and take_to_groups(). For callers outside of a step. Collective.
  void take_all(OfMaster of_master = OfMaster::kAll);
  // Copies accepted writes to the master weights that `of_master` selects.
  void take_to_groups(OfMaster of_master = OfMaster::kAll);

  // Says that the engine has written to the parameter (WriteWatch::tell_autograd()).
  void tell_autograd(ParamPlace place) { watch_.tell_autograd(place); }
  // Says that a load has written to all parameters. Accepts all writes, and calls forget_readings().
  void accept_loaded();
  // Forgets the checksums by which a release finds writes to values that users hold for reading.
  void forget_readings() { held_.forget_checksums(); }
  // Does the same, and forgets the values that a release would restore. Call it if a step may have changed the values
  // that users hold.
  void forget_held() { held_.forget(); }

  // Says that a caller may write to shards from now on: see Engine::local_param().
  void lend_shards() { has_lent_shards_ = true; }
  // If lend_shards() was called, makes later gathers wait for what the caller has written to shards on the current
  // stream.
  void order_lent_shards();

  // The functions from here on are for a pending delayed update: see Note [Delayed updates].

  // Calls ShardedGroup::remember_parameters() for the parameters to which users can write, so that wrote_late() also
  // finds later writes that version counters do not show.
  void remember_open_parameters();
  static void remember_open_parameters(ShardedGroup& group);
  // Makes wrote_late() return true until the next remember_open_parameters() of all groups. Engine::set_weights() calls
  // lose_sums() if users have written to a group, because it then takes new checksums of the group, which would hide
  // the writes.
  void lose_sums() { has_lost_sums_ = true; }
  // Returns whether the user has written to parameters that the pending update will overwrite. To find out, copies what
  // is written to kPersistent units to the shards of these units. Always returns true after lose_sums().
  bool wrote_late();
  // Throws StateError on all ranks if wrote_late() is true on some rank. The error is thrown once, and then the writes
  // are lost. Collective.
  void check_late();

 private:
  void check();
  void drop_writes_to_shards(const std::vector<ParamPlace>& params, const std::vector<int64_t>& written);
  void check_write(ParamPlace place, int64_t how) const;
  std::string refused_memory(ParamPlace place) const;
  std::string take_moved(const std::vector<size_t>& units, int root);

  const Ranks& ranks_;
  Memory& memory_;
  Executor& executor_;
  const ShardedOptimizer& optimizer_;
  WriteWatch watch_;
  HeldValues held_;
  bool has_lent_shards_ = false;
  bool has_lost_sums_ = false;
};

}  // namespace zeroshard
