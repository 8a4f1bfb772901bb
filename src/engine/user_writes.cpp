#include "engine/user_writes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/shape_text.h"
#include "engine/consensus.h"
#include "engine/same_on_ranks.h"
#include "zeroshard/engine.h"

namespace zeroshard {
namespace {

constexpr std::string_view kWrites = "parameters that were written";

}  // namespace

void UserWrites::gather(const std::vector<size_t>& units, HeldValues::Purpose purpose) {
  for (const size_t unit : units) {
    executor_.hold(unit);
    held_.begin(unit, purpose);
  }
}

void UserWrites::release(const std::vector<size_t>& units, int modify_rank) {
  for (const size_t u : units) {
    if (held_.times(u) >= std::ranges::count(units, u)) continue;
    throw StateError(concat("unit '", executor_.unit(u).layout().name,
                            "' is released more often than it was gathered: call release() once for each gather()"));
  }
  std::vector<std::string> written;
  const std::string refused = modify_rank >= 0 ? take_moved(units, modify_rank) : "";
  for (const size_t u : units) {
    Unit& unit = executor_.unit(u);
    if (modify_rank == Engine::kDropWrites) held_.end_and_restore(u);
    if (modify_rank == Engine::kReadOnly)
      for (std::string& name : held_.end_and_compare(u)) written.push_back(std::move(name));
    if (modify_rank >= 0) {
      held_.end(u);
      unit.broadcast_from(modify_rank);
      for (ShardedGroup& group : unit.groups()) group.copy_parameters_to_master();
      held_.accept(u);
    }
    const bool dropped = modify_rank == Engine::kDropWrites && unit.placement() == Placement::kSharded;
    for (size_t i = 0; dropped && i < unit.layout().params.size(); ++i) unit.point_back(i);
    if (modify_rank >= 0 || dropped) watch_.accept(u);
    executor_.release(u);
  }
  if (!refused.empty()) throw StateError(refused);
  if (written.empty()) return;
  throw StateError(concat("parameter '", written.front(),
                          "' was written inside zeroshard.gathered(...) without "
                          "modify_rank, which is for reading",
                          written.size() > 1 ? concat(" (and ", written.size() - 1, " more)") : "",
                          ": pass modify_rank=0 on every rank, and what rank 0 writes is taken on all"));
}

void UserWrites::check_no_change_begun(const char* call) const {
  if (!held_.may_change()) return;
  throw StateError(concat(call,
                          " inside zeroshard.gathered(..., modify_rank=...) would mix its values with those that "
                          "are written there: leave the context first, on every rank"));
}

void UserWrites::take(bool written_somewhere) {
  if (written_somewhere) check();
  for (size_t u = 0; u < executor_.size(); ++u) executor_.unit(u).copy_whole_to_shard();
}

void UserWrites::take_all(OfMaster of_master) {
  take(on_any_rank(ranks_.all, watch_.any_written(), kWrites));
  take_to_groups(of_master);
}

void UserWrites::take_to_groups(OfMaster of_master) {
  if (of_master == OfMaster::kNone) return;
  const auto is_taken = [&](const ShardedGroup& group) {
    if (of_master == OfMaster::kAll || group.states().in_memory() != nullptr) return true;
    // The save reads these parameters instead of their master weights: see Saves::States::add_weights().
    const bool are_saved = group.flat().dtype == DType::kFloat32 && group.states().hold() != nullptr;
    return of_master == OfMaster::kAllButFp32InFiles && !are_saved;
  };
  for (ShardedGroup* const group : memory_.groups->trained())
    if (is_taken(*group)) optimizer_.take_writes(*group);
}

void UserWrites::check() {
  const std::vector<ParamPlace> params = executor_.params();
  std::vector<int64_t> written = watch_.written();
  for (size_t p = 0; p < params.size(); ++p)
    if (written[p] == WriteWatch::kMoved && !executor_.unit(params[p].unit).prepare_take_back(params[p].param))
      written[p] = WriteWatch::kRefused;
  written = all_reduce(ranks_.all, std::move(written), ReduceOp::kMax, kWrites);
  drop_writes_to_shards(params, written);
  for (size_t p = 0; p < params.size(); ++p) check_write(params[p], written[p]);
  std::vector<std::pair<std::string, at::Tensor>> replicas;
  std::set<size_t> taken_back;  // units
  for (size_t p = 0; p < params.size(); ++p) {
    if (written[p] == 0) continue;
    Unit& unit = executor_.unit(params[p].unit);
    unit.unshard();
    unit.wait();
    if (written[p] == WriteWatch::kMoved && taken_back.insert(params[p].unit).second) unit.take_back(/*values=*/true);
    watch_.reject(params[p]);
    replicas.emplace_back(executor_.spec(params[p]).name(), executor_.tensors(params[p]).front());
  }
  check_same_on_ranks(ranks_.all, replicas,
                      "It was written, and not the same on every rank: write the same everywhere, or inside "
                      "zeroshard.gathered(..., modify_rank=0), which takes what that rank writes");
  watch_.accept_all();
}

// Drops in-place writes to parameters of kSharded units. To do so, gathers the values of the shards again.
// check_write() will refuse these writes, but only once, because they are dropped here. Collective.
void UserWrites::drop_writes_to_shards(const std::vector<ParamPlace>& params, const std::vector<int64_t>& written) {
  std::set<size_t> units;
  for (size_t p = 0; p < params.size(); ++p)
    if (written[p] == WriteWatch::kWritten) units.insert(params[p].unit);
  for (const size_t unit : units) {
    if (executor_.unit(unit).placement() != Placement::kSharded) continue;
    executor_.unit(unit).take_part();
    watch_.accept(unit);
  }
}

// Throws StateError if the write to a parameter cannot be taken. `how` is the worst kind of write on any rank, or 0.
void UserWrites::check_write(ParamPlace place, int64_t how) const {
  const std::string& name = executor_.spec(place).name();
  if (how != 0 && executor_.unit(place.unit).placement() == Placement::kSharded) {
    if (how == WriteWatch::kWritten)
      throw StateError(
          concat("parameter '", name,
                 "' was written outside of zeroshard.gathered(..., modify_rank=...), while it was whole "
                 "for a forward. What was written is lost, because each rank keeps only a shard. Write the "
                 "parameter inside of zeroshard.gathered(..., modify_rank=0)"));
    throw StateError(concat("parameter '", name,
                            "' was given other memory (param.data = ...) outside of zeroshard.gathered(..., "
                            "modify_rank=...). Training would ignore that memory, because each rank trains its own "
                            "shard. Assign inside of zeroshard.gathered(..., modify_rank=0)"));
  }
  if (how == WriteWatch::kRefused) throw StateError(refused_memory(place));
}

std::string UserWrites::refused_memory(ParamPlace place) const {
  const ParamSpec& spec = executor_.spec(place);
  return concat(
      "parameter '", spec.name(),
      "' was given other memory (param.data = ...) whose values cannot be taken: they have another shape than ",
      shape_text(spec.shape), ", cannot be read, or differ between tensors that are tied");
}

// Takes back the parameters of the units to which users have given other memory (param.data = ...). Rank `root` copies
// the values of such parameters to the memory of their units. Every rank then points such parameters at that memory
// again. If the values of some parameter cannot be copied, `root` copies none, so all of them are lost, and the
// function returns the reason on all ranks. Otherwise it returns "". Call it before the written values are taken.
// Collective.
std::string UserWrites::take_moved(const std::vector<size_t>& units, int root) {
  const bool is_root = ranks_.all.rank() == root;
  std::vector<ParamPlace> params;
  int64_t refused = 0;  // 1 + index of the refused parameter
  for (const size_t u : units) {
    for (size_t i = 0; i < executor_.unit(u).layout().params.size(); ++i) {
      params.push_back({u, i});
      if (is_root && !executor_.unit(u).prepare_take_back(i)) refused = int64_t(params.size());
    }
  }
  if (ranks_.all.world_size() > 1)
    refused = all_reduce(ranks_.values(), {refused}, ReduceOp::kMax, "memory of parameters")[0];
  for (const size_t u : units) executor_.unit(u).take_back(is_root && refused == 0);
  return refused == 0 ? "" : refused_memory(params.at(size_t(refused - 1)));
}

void UserWrites::accept_loaded() {
  for (const ParamPlace place : executor_.params()) watch_.tell_autograd(place);
  watch_.accept_all();
  held_.forget_checksums();
}

void UserWrites::order_lent_shards() {
  if (has_lent_shards_) memory_.gathers.after_current_stream();
}

void UserWrites::remember_open_parameters() {
  has_lost_sums_ = false;
  for (ShardedGroup* const group : memory_.groups->trained()) remember_open_parameters(*group);
}

void UserWrites::remember_open_parameters(ShardedGroup& group) {
  if (!group.users_may_write()) return;
  group.await_copies();
  group.remember_parameters();
  group.await_copies();  // after this, users may write
}

bool UserWrites::wrote_late() {
  if (has_lost_sums_) return true;
  for (size_t u = 0; u < executor_.size(); ++u) {
    Unit& unit = executor_.unit(u);
    unit.copy_whole_to_shard();
    if (unit.placement() == Placement::kSharded) continue;  // its parameters are not whole between steps
    for (size_t i = 0; i < unit.layout().params.size(); ++i)
      if (unit.layout().params[i].requires_grad && watch_.is_written({u, i})) return true;
  }
  return std::ranges::any_of(memory_.groups->trained(), [](const ShardedGroup* group) { return group->was_written(); });
}

void UserWrites::check_late() {
  if (!on_any_rank(ranks_.all, wrote_late(), kWrites)) return;
  for (size_t u = 0; u < executor_.size(); ++u) {
    Unit& unit = executor_.unit(u);
    if (unit.placement() == Placement::kSharded) continue;
    for (size_t i = 0; i < unit.layout().params.size(); ++i)
      if (unit.is_moved(i) && unit.layout().params[i].requires_grad) unit.point_back(i);
    watch_.accept(u);
  }
  remember_open_parameters();
  throw StateError(
      "parameters were written between two steps, on this rank or another, and what was written is lost. With "
      "zeroshard.offload.delayed_update, the update of the step before comes later and overwrites it. Write inside of "
      "zeroshard.gathered(..., modify_rank=0), which applies that update first");
}

}  // namespace zeroshard
