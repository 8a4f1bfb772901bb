#include "unit/unit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/cut.h"
#include "device/detachable_storage.h"
#include "device/dtype.h"
#include "device/named_range.h"

namespace zeroshard {
namespace {

constexpr int64_t kPieceNumel = int64_t{1} << 20;

}  // namespace

Unit::Unit(const UnitLayout& layout, std::span<ShardedGroup> groups, Placement placement, UnitSource source,
           at::Device device, Comms comms, SlotRing& ring, GatherStream& gathers)
    : layout_(layout),
      groups_(groups),
      placement_(placement),
      device_(device),
      comms_(comms),
      ring_(ring),
      gathers_(gathers),
      ready_(device) {
  if (placement_ == Placement::kPersistent) {
    ring_.add({{layout_.full_bytes(), 1}});
    slot_ = ring_.try_acquire(layout_.full_bytes());
  }
  source.values ? read(source) : load(source);
  params_.reserve(layout_.params.size());
  for (size_t i = 0; i < layout_.params.size(); ++i)
    params_.emplace_back(layout_.params[i], std::move(source.params[i]), device_);
  if (placement_ != Placement::kReplicated) return;
  attach(replicated_memory());
  state_ = Unsharded{replicated_memory()};
}

Unit::~Unit() {
  release_uses();
  params_.clear();
  if (slot_) ring_.release(slot_);
}

// Makes later users of the slot wait for its present users. If the unit's gather still runs on a device, the current
// stream waits for it. On the CPU the gather is abandoned, because some rank might never take part in it.
void Unit::release_uses() noexcept {
  try {
    if (const Unsharding* const pending = std::get_if<Unsharding>(&state_); pending && !device_.is_cpu()) {
      for (const auto& work : pending->works) work->wait();
      slot_->uses().share();
    }
    if (slot_) slot_->uses().end();
  } catch (const std::exception&) {  // the device or a rank has failed, so nobody uses the memory again
  }
}

// Copies rank 0's values to the parameters that this rank keeps, and to this rank's master weights. Copies one group at
// a time, so that initialisation needs additional memory for only one whole group.
void Unit::load(UnitSource& source) {
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const at::ScalarType target = to_scalar_type(group.dtype);
    // Trained values pass through fp32, because the master weights need them in fp32. Frozen values have no master
    // weights. They do not pass through fp32, because they might not be numbers. For example, packed 4-bit weights can
    // be stored as bf16.
    const at::ScalarType type = group.requires_grad ? at::kFloat : target;
    at::Tensor staging = at::zeros({group.layout.padded_numel()}, at::TensorOptions().dtype(type).device(device_));
    for (size_t i = 0; i < group.params.size(); ++i) {
      const at::Tensor& value = source.params[group.params[i]].front();
      const Range range = group.layout.param(i);
      at::Tensor dense = value.detach().to(device_);
      if (!is_floating_point(group.dtype)) dense = dense.contiguous().view(target);
      cut(staging, range).view(dense.sizes()).copy_(dense);
    }
    const Span span{staging.data_ptr(), staging.numel(), to_dtype(type)};
    comms_.all.broadcast(span, /*root=*/0, layout_.name)->wait();
    groups_[g].write_master({0, staging.numel()}, staging);
    groups_[g].write_parameters({0, staging.numel()}, staging);
  }
}

// Reads the values that this rank keeps, and writes them to its parameters and master weights. Reads piece by piece, so
// that only one piece needs additional host memory.
void Unit::read(const UnitSource& source) {
  at::Tensor piece = at::empty({kPieceNumel}, at::kFloat);
  for (ShardedGroup& group : groups_) {
    ZS_ASSERT(is_floating_point(group.flat().dtype), "unit ", layout_.name,
              " has values to read that are not floating-point");
    for (size_t i = 0; i < group.num_params(); ++i) {
      const Range param = group.layout().param(i), needed = intersect(param, group.kept());
      for (int64_t at = needed.begin; at < needed.end; at += kPieceNumel) {
        const Range now{at, std::min(at + kPieceNumel, needed.end)};
        source.values(group.flat().params[i], now.begin - param.begin, now.end - param.begin, piece.data_ptr<float>());
        group.write_parameters(now, piece);
        group.write_master(now, piece);
      }
    }
  }
}

bool Unit::prefetch() {
  if (!is_sharded()) return true;
  if (!slot_) slot_ = ring_.try_acquire(layout_.full_bytes());
  if (!slot_) return false;
  start_gather(slot_->data());
  return true;
}

void Unit::unshard() {
  if (is_sharded()) gathers_.after_current_stream();
  if (prefetch()) return;
  slot_ = ring_.acquire(layout_.full_bytes());
  start_gather(slot_->data());
}

void Unit::start_gather(char* memory) {
  const NamedRange named("gather", layout_.name);
  const SideStream::Scope scope(gathers_.stream);
  gathers_.shard_writes.take();
  slot_->uses().take();
  Unsharding pending{{}, memory};
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const Span out{group_memory(memory, g), group.layout.padded_numel(), group.dtype};
    const ConstSpan in{shard_for_gather(g, out), group.layout.shard_numel(), group.dtype};
    pending.works.push_back(comms_.gather.all_gather(out, in, layout_.name));
  }
  state_ = std::move(pending);
}

// Returns the address of this rank's shard as the input of a gather into `full`. For an offloaded shard, first starts
// to copy it to this rank's slice of `full`, on the stream of gathers, and returns the address of the slice.
const void* Unit::shard_for_gather(size_t g, const Span& full) {
  ShardedGroup& group = groups_[g];
  if (group.is_resident()) return group.my_shard().const_data_ptr();
  char* const place = static_cast<char*>(full.data) + group.shard().begin * element_size(full.dtype);
  group.begin_copy_of_shard(place, gathers_.stream);
  return place;
}

void Unit::wait() {
  if (Unsharding* const pending = std::get_if<Unsharding>(&state_)) {
    const NamedRange named("wait for the gather of", layout_.name);
    for (const auto& work : pending->works) work->wait();
    attach(pending->memory);
    gathered_ = std::move(pending->works);
    state_ = Unsharded{pending->memory};
  }
  if (!is_unsharded()) return;
  ready_.take();
  if (slot_) slot_->uses().share();
}

void Unit::reshard() {
  if (placement_ == Placement::kReplicated || is_sharded()) return;
  wait();  // a collective might still write to the memory
  for (UnitParam& param : params_) param.take();
  slot_->uses().end();
  if (placement_ == Placement::kSharded) ring_.release(std::exchange(slot_, nullptr));
  state_ = Sharded{};
}

void Unit::begin_hold() {
  if (placement_ == Placement::kReplicated) return;
  for (UnitParam& param : params_) param.begin_hold();
}

void Unit::end_hold(bool leaves) {
  const bool has_kept = std::any_of(params_.begin(), params_.end(), std::mem_fn(&UnitParam::has_kept_views));
  at::Tensor left;
  if (leaves && has_kept && is_unsharded()) {
    wait();
    try {
      left = ring_.take_memory(slot_);
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, concat("tensors that were made of parameters of unit '", layout_.name,
                                     "' inside a gather cannot be kept: ", error.what()));
    }
  }
  for (UnitParam& param : params_) param.end_hold(left);
  if (!left.defined()) return;
  if (placement_ == Placement::kPersistent) {
    slot_->buffer().view(left.scalar_type(), 0, left.numel()).copy_(left);
    slot_->uses().share();
    attach(slot_->data());
    state_ = Unsharded{slot_->data()};
    return;
  }
  reshard();
}

void Unit::await_readers() {
  for (const auto& work : std::exchange(gathered_, {})) work->drain();
}

void Unit::take_part() {
  if (placement_ == Placement::kReplicated) return;
  if (is_sharded()) {
    unshard();
    return reshard();
  }
  wait();
  gathers_.after_current_stream();
  start_gather(std::get<Unsharded>(state_).memory);  // writes the values of the shards to the memory that the unit has
  wait();
}

void Unit::attach(char* memory) {
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    char* const first = group_memory(memory, g);
    for (size_t i = 0; i < group.params.size(); ++i)
      params_[group.params[i]].put(first + group.layout.param(i).begin * element_size(group.dtype));
  }
}

char* Unit::group_memory(char* base, size_t group) const {
  for (const FlatGroup& before : std::span(layout_.groups).first(group))
    base += before.layout.padded_numel() * element_size(before.dtype);
  return base;
}

// Returns the memory of a kReplicated unit. The unit's groups are contiguous, as in a slot of the ring, so the memory
// begins with the first group that has elements. Returns null if no group has elements, because a group without
// elements has no address.
char* Unit::replicated_memory() const {
  for (const ShardedGroup& group : groups_)
    if (group.kept().size() > 0) return static_cast<char*>(group.kept_parameters().data_ptr());
  return nullptr;
}

at::Tensor Unit::full(size_t g) const {
  const Unsharded* const unsharded = std::get_if<Unsharded>(&state_);
  ZS_ASSERT(unsharded, "unit ", layout_.name, " is not unsharded");
  const FlatGroup& group = layout_.groups.at(g);
  return view_memory(group_memory(unsharded->memory, g), group.layout.padded_numel(), to_scalar_type(group.dtype),
                     device_);
}

bool Unit::owns(const at::Tensor& tensor) const {
  return is_detachable(tensor) &&
         std::any_of(params_.begin(), params_.end(), [&](const auto& param) { return param.owns(tensor); });
}

void Unit::start_refresh() {
  if (placement_ != Placement::kReplicated) reshard();
  comms_.parts != nullptr ? gather_parts() : gather_shards();
}

void Unit::gather_parts() {
  const NamedRange named("refresh parts of", layout_.name);
  gathers_.stream.follow();
  const SideStream::Scope scope(gathers_.stream);
  std::vector<at::Tensor> coded;
  for (const ShardedGroup& group : groups_) {
    if (has_codes(group)) coded.push_back(group.my_shard());
    if (!group.is_trained() || has_codes(group)) continue;
    const at::Tensor shard = group.my_shard(), part = group.updated_parameters();
    refreshing_.push_back(comms_.parts->all_gather({shard.data_ptr(), shard.numel(), group.flat().dtype},
                                                   {part.const_data_ptr(), part.numel(), group.flat().dtype},
                                                   layout_.name));
  }
  if (!coded.empty()) comms_.codes->begin(std::move(coded), layout_.name);
}

void Unit::gather_shards() {
  if (placement_ != Placement::kReplicated || comms_.gather.world_size() == 1) return;
  const NamedRange named("refresh", layout_.name);
  // The scope makes the stream of gathers current. So kept_parameters() makes this stream, and not the caller's, wait
  // until the unit's parameters have come from the host.
  gathers_.stream.follow();
  const SideStream::Scope scope(gathers_.stream);
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    if (!group.requires_grad) continue;
    const Span out{groups_[g].kept_parameters().data_ptr(), group.layout.padded_numel(), group.dtype};
    const ConstSpan in{groups_[g].my_shard().const_data_ptr(), group.layout.shard_numel(), group.dtype};
    refreshing_.push_back(comms_.gather.all_gather(out, in, layout_.name));
  }
}

void Unit::end_gathers_in_place() {
  if (refreshing_.empty()) return;
  const NamedRange named("wait for the refresh of", layout_.name);
  for (const auto& work : refreshing_) work->wait();
  refreshing_.clear();
}

void Unit::finish_refresh() {
  end_gathers_in_place();
  if (std::ranges::any_of(groups_, [this](const ShardedGroup& group) { return has_codes(group); })) {
    const SideStream::Scope scope(gathers_.stream);  // later gathers run on this stream, so they wait for finish()
    comms_.codes->finish();
  }
  if (comms_.parts != nullptr) {  // the shard is complete now
    gather_shards();
    end_gathers_in_place();
  }
  if (placement_ != Placement::kReplicated) return;
  for (const ShardedGroup& group : groups_) group.await_copies();
}

void Unit::return_tensors() {
  if (params_.empty()) return;
  unshard();
  wait();
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const at::Tensor whole = full(g);
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Range range = group.layout.param(i);
      params_[group.params[i]].give_back(cut(whole, range).clone());
    }
  }
  params_.clear();
  reshard();
}

void Unit::copy_whole_to_shard() {
  if (placement_ != Placement::kPersistent || !is_unsharded()) return;
  const char* const whole = std::get<Unsharded>(state_).memory;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Range own = groups_[g].shard();
    const at::Tensor shard = groups_[g].my_shard();
    if (device_.is_cpu()) {
      const int64_t size = shard.element_size();
      std::memcpy(shard.data_ptr(), group_memory(const_cast<char*>(whole), g) + own.begin * size,
                  size_t(own.size() * size));
    } else {
      shard.copy_(cut(full(g), own));
    }
  }
}

void Unit::take_back(bool values) {
  for (UnitParam& param : params_) param.take_back(values);
}

void Unit::broadcast_from(int root) {
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const at::Tensor whole = full(g);
    const Span span{whole.data_ptr(), whole.numel(), layout_.groups[g].dtype};
    comms_.all.broadcast(span, root, layout_.name)->wait();
    // Ranks of comms_.gather might still be reading this rank's shard for a gather. A broadcast in comms_.gather would
    // have waited for that, but the broadcast was in comms_.all.
    if (&comms_.all != &comms_.gather) comms_.gather.barrier(layout_.name);
    if (placement_ == Placement::kReplicated) continue;
    const Range own = groups_[g].shard();
    groups_[g].write_parameters(own, cut(whole, own));
  }
  gathers_.after_current_stream();  // because prefetch() would not make a gather wait for the writes
}

}  // namespace zeroshard
