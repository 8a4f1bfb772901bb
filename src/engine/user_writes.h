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
  // Throws StateError if `call` would change parameters that are gathered to be modified.
  void check_no_change_begun(const char* call) const;

  bool any_written() const { return watch_.any_written(); }
  // Accepts writes to whole parameters that all ranks have made alike. Throws StateError on all ranks if there are
  // other writes. The master weights take accepted writes later. `written_somewhere` says whether a user has written on
  // some rank. Collective if it is true.
  void take(bool written_somewhere);
  // Selects the master weights that take writes. kInMemory selects those in memory. kAllButSaved also selects those in
  // files, except of 32-bit parameters, because a save in the background reads these parameters instead.
  enum class OfMaster : uint8_t { kNone, kInMemory, kAllButSaved, kAll };
  // Takes writes for a call outside of steps. `of_master` says which master weights take them. Collective.
  void take_all(OfMaster of_master = OfMaster::kAll);
  void take_to_groups(OfMaster of_master = OfMaster::kAll);

  // The engine has written to the parameter.
  void tell_autograd(size_t unit, size_t param) { watch_.tell_autograd(unit, param); }
  // A load has written to all parameters.
  void accept_loaded();
  void forget_readings() { watch_.forget_readings(); }
  // A step has changed the values that users hold.
  void end_step();
  // Forgets the values that a release would restore.
  void forget_held() { held_.forget(); }

  // A caller may write to shards from now on: see Engine::local_param().
  void lend_shards() { has_lent_shards_ = true; }
  // Lets the gathers of a pass see what was written to shards.
  void publish_lent_shards();

  // While a delayed update is pending: see Note [Delayed updates].
  // Remembers the current parameters, so that wrote_late() can find later writes of users.
  void remember_open_parameters();
  static void remember_open_parameters(ShardedGroup& group);
  // Makes wrote_late() return true, because an earlier write to parameters has made their checksums invalid: see
  // Engine::set_weights().
  void lose_sums() { has_lost_sums_ = true; }
  // Returns whether the user has written to parameters that the pending update will overwrite.
  bool wrote_late();
  // Throws StateError on all ranks if wrote_late() is true on some rank. The error is thrown once, and then the writes
  // are lost. Collective.
  void check_late();

 private:
  void check();
  void drop_writes_to_shards(const std::vector<int64_t>& written);
  void check_write(size_t unit, size_t param, int64_t how) const;
  std::string refused_memory(size_t unit, size_t param) const;
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
