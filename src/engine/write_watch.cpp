#include "engine/write_watch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/shape_text.h"
#include "engine/consensus.h"
#include "engine/impl.h"
#include "engine/replica_check.h"
#include "file/hash.h"

namespace zeroshard {
namespace {

int64_t checksum(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  if (dense.is_cpu()) return int64_t(hash_bytes(dense.const_data_ptr(), int64_t(dense.nbytes())));
  const auto words = dense.element_size() == 8   ? at::kLong
                     : dense.element_size() == 4 ? at::kInt
                     : dense.element_size() == 2 ? at::kShort
                                                 : at::kByte;
  return dense.view({-1}).view(words).sum(at::kLong).item<int64_t>();  // only the sum is copied to the host
}

}  // namespace

uint64_t WriteWatch::version(size_t unit, size_t param) const {
  uint64_t sum = 0;
  for (const at::Tensor& tensor : executor_.unit(unit).tensors(param)) {
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) sum += counter.current_version();  // a tensor made in inference mode has no counter
  }
  return sum;
}

std::vector<int64_t> WriteWatch::written() const {
  std::vector<int64_t> result;
  for (size_t u = 0; u < versions_.size(); ++u)
    for (size_t i = 0; i < versions_[u].size(); ++i)
      result.push_back(executor_.unit(u).is_moved(i) ? kMoved : version(u, i) != versions_[u][i] ? kWritten : 0);
  return result;
}

bool WriteWatch::any_written() const {
  for (size_t u = 0; u < versions_.size(); ++u)
    for (size_t i = 0; i < versions_[u].size(); ++i)
      if (is_written(u, i)) return true;
  return false;
}

bool WriteWatch::is_written(size_t unit, size_t param) const {
  return version(unit, param) != versions_[unit][param] || executor_.unit(unit).is_moved(param);
}

void WriteWatch::accept(size_t unit) {
  std::vector<uint64_t>& versions = versions_.at(unit);
  versions.resize(executor_.unit(unit).layout().params.size());
  for (size_t i = 0; i < versions.size(); ++i) versions[i] = version(unit, i);
}

void WriteWatch::accept_all() {
  versions_.resize(executor_.size());
  for (size_t unit = 0; unit < versions_.size(); ++unit) accept(unit);
}

void WriteWatch::tell_autograd(size_t unit, size_t param) {
  const bool was_written = is_written(unit, param);
  for (const at::Tensor& tensor : executor_.unit(unit).tensors(param)) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (impl->version_counter().enabled()) impl->bump_version();
  }
  if (!was_written) versions_[unit][param] = version(unit, param);
}

std::vector<int64_t> WriteWatch::checksums(size_t unit) const {
  std::vector<int64_t> result;
  const Unit& values = executor_.unit(unit);
  for (size_t i = 0; i < values.layout().params.size(); ++i) result.push_back(checksum(values.tensors(i).front()));
  return result;
}

void WriteWatch::begin_reading(size_t unit) {
  const auto found = readings_.find(unit);
  if (found != readings_.end()) {
    ++found->second.times;
  } else {
    readings_.emplace(unit, Reading{1, checksums(unit)});
  }
}

std::vector<std::string> WriteWatch::end_reading(size_t unit) {
  const auto found = readings_.find(unit);
  if (found == readings_.end()) return {};
  Unit& values = executor_.unit(unit);
  std::vector<std::string> names;
  if (values.is_unsharded()) {  // otherwise a step has freed the values in the meantime
    const std::vector<int64_t> now = checksums(unit);
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == found->second.checksums[i]) continue;
      names.push_back(values.layout().params[i].name());
      values.point_back(i);
    }
  }
  if (--found->second.times == 0) readings_.erase(found);
  return names;
}

void WriteWatch::abandon_reading(size_t unit) {
  const auto found = readings_.find(unit);
  if (found != readings_.end() && --found->second.times == 0) readings_.erase(found);
}

// Accepts writes that all ranks have made alike, including those to master weights. Collective.
void Engine::Impl::take_writes(bool written_somewhere) {
  if (written_somewhere) check_writes();
  for (size_t u = 0; u < executor->size(); ++u) executor->unit(u).take_written();
}

// Takes writes for a call outside of steps. `of_master` says which master weights take them. Collective.
void Engine::Impl::take_all_writes(OfMaster of_master) {
  if (!in_use) return;
  take_writes(agree_on_flags(ranks.reduce, {watch->any_written() ? 1 : 0}).front() != 0);
  take_writes_to_groups(of_master);
}

void Engine::Impl::take_writes_to_groups(OfMaster of_master) {
  if (of_master == OfMaster::kNone) return;
  const auto is_taken = [&](const ShardedGroup& group) {
    if (of_master == OfMaster::kAll || group.states().in_memory() != nullptr) return true;
    // See States::add_weights().
    const bool are_saved = group.flat().dtype == DType::kFloat32 && group.states().hold() != nullptr;
    return of_master == OfMaster::kAllButSaved && !are_saved;
  };
  for (ShardedGroup* const group : memory->groups->trained())
    if (is_taken(*group)) optimizer.take_writes(*group);
}

void Engine::Impl::check_writes() {
  std::vector<int64_t> written = watch->written();
  size_t next = 0;
  for (size_t u = 0; u < plan.layouts.size(); ++u)
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i, ++next)
      if (written[next] == WriteWatch::kMoved && !executor->unit(u).prepare_take_back(i))
        written[next] = WriteWatch::kRefused;
  written = agree_on_flags(ranks.reduce, written);
  drop_writes_to_shards(written);
  next = 0;
  for (size_t u = 0; u < plan.layouts.size(); ++u)
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) check_write(u, i, written[next++]);
  std::vector<std::pair<std::string, at::Tensor>> replicas;
  next = 0;
  for (size_t u = 0; u < plan.layouts.size(); ++u) {
    Unit& unit = executor->unit(u);
    bool taken_back = false;
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) {
      const int64_t how = written[next++];
      if (how == 0) continue;
      unit.unshard();
      unit.wait();
      if (how == WriteWatch::kMoved && !std::exchange(taken_back, true)) unit.take_back(/*values=*/true);
      watch->reject(u, i);
      replicas.emplace_back(plan.layouts[u].params[i].name(), unit.tensors(i).front());
    }
  }
  check_replicas(ranks.reduce, replicas,
                 "It was written, and not the same on every rank: write the same everywhere, or inside "
                 "zeroshard.gathered(..., modify_rank=0), which takes what that rank writes");
  watch->accept_all();
}

// Drops the writes that check_write() refuses. The error is thrown once, and every rank has the values of the shards
// again. Collective.
void Engine::Impl::drop_writes_to_shards(const std::vector<int64_t>& written) {
  size_t next = 0;
  for (size_t u = 0; u < plan.layouts.size(); ++u) {
    bool lost = false;
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) lost |= written[next++] == WriteWatch::kWritten;
    if (!lost || executor->unit(u).placement() != Placement::kSharded) continue;
    executor->unit(u).take_part();
    watch->accept(u);
  }
}

// `how` is the worst kind of write on any rank.
void Engine::Impl::check_write(size_t unit, size_t param, int64_t how) const {
  const std::string& name = plan.layouts[unit].params[param].name();
  if (how != 0 && executor->unit(unit).placement() == Placement::kSharded) {
    if (how == WriteWatch::kWritten)
      throw StateError(concat("parameter '", name,
                              "' was written outside of zeroshard.gathered(..., modify_rank=...), while it was whole "
                              "for a forward: each rank keeps a shard of it alone, and what was written is lost. "
                              "Write it inside of that"));
    throw StateError(concat("parameter '", name,
                            "' was given other memory (param.data = ...) outside of zeroshard.gathered(..., "
                            "modify_rank=...): each rank keeps a shard of it alone, and would train that. Assign to it "
                            "inside of that"));
  }
  if (how == WriteWatch::kRefused) throw StateError(refused_memory(unit, param));
}

std::string Engine::Impl::refused_memory(size_t unit, size_t param) const {
  const ParamSpec& spec = plan.layouts[unit].params[param];
  return concat(
      "parameter '", spec.name(),
      "' was given other memory (param.data = ...) whose values cannot be taken: they have another shape than ",
      shape_text(spec.shape), ", cannot be read, or differ between tensors that are tied");
}

// Takes the memory that rank `root` gave to parameters of units, before its writes are taken. Returns on all ranks why
// that is not possible, or "". Collective.
std::string Engine::Impl::take_moved(const std::vector<size_t>& units, int root) {
  const bool is_root = ranks.gather.rank() == root;
  std::vector<std::pair<size_t, size_t>> params;
  int64_t refused = 0;  // 1 + index of the refused parameter
  for (const size_t u : units) {
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) {
      params.emplace_back(u, i);
      if (is_root && !executor->unit(u).prepare_take_back(i)) refused = int64_t(params.size());
    }
  }
  if (ranks.gather.world_size() > 1)
    refused = all_reduce(ranks.gather, {refused}, ReduceOp::kMax, "memory of parameters")[0];
  for (const size_t u : units) executor->unit(u).take_back(is_root && refused == 0);
  if (refused == 0) return "";
  const auto [unit, param] = params.at(size_t(refused - 1));
  return refused_memory(unit, param);
}

}  // namespace zeroshard
