#include "unit/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/dtype.h"
#include "device/swap_storage.h"

namespace zeroshard {
namespace {

std::string guard_message(const std::string& name) {
  return concat(
      "parameter '", name,
      "' is sharded: outside of forward, read it inside zeroshard.gathered(...). Where the forward of another "
      "module reads it, name in zeroshard.unit_classes a class of module that contains both");
}

std::string gone_message(std::string_view what, const std::string& name) {
  return concat(
      what, " '", name,
      "' has no values any more: the engine that had it is gone, and did not return it (Engine::return_unit)");
}

constexpr int64_t kPieceNumel = int64_t{1} << 20;

}  // namespace

Unit::Unit(const UnitLayout& layout, std::span<ShardedGroup> groups, Placement placement, UnitSource source,
           at::Device device, Comm& comm, SlotRing& ring, GatherStream& gathers, Ledger& ledger)
    : layout_(layout),
      groups_(groups),
      placement_(placement),
      device_(device),
      comm_(comm),
      ring_(ring),
      gathers_(gathers),
      persistent_uses_(device),
      ready_(device) {
  if (placement_ == Placement::kPersistent) {
    persistent_ = FlatBuffer(layout_.full_bytes(), device_, ledger, Category::kGatherRing, &comm_);
    persistent_uses_.share();
    persistent_uses_.end();
  }
  source.values ? read(source) : load(source);
  adopt_tensors(std::move(source.params));
  if (placement_ == Placement::kReplicated) {
    attach(replicated_memory());
    state_ = Unsharded{replicated_memory()};
  } else {
    detach();
  }
}

// Tensors of the user's may live longer than the memory.
Unit::~Unit() {
  leave_memory();
  try {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ParamSpec& spec = layout_.params[i];
      const auto gone =
          make_guard_storage(spec.numel() * element_size(spec.dtype), device_, gone_message("parameter", spec.name()));
      for (const at::Tensor& tensor : tensors_[i])
        if (!is_elsewhere(tensor, i)) point_at(tensor, gone, 0);
    }
    for (const c10::Storage& storage : full_)  // views of parameters have it
      storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
          gone_message("a view of a parameter of unit", layout_.name));
  } catch (const std::bad_alloc&) {
    for (const c10::Storage& storage : full_) set_memory(storage, nullptr, device_);
  }
  if (slot_) ring_.release(slot_);
}

// Orders whoever uses the memory next after those who do. On the host a gather ahead that nobody waited for is left: a
// peer may never come.
void Unit::leave_memory() noexcept {
  try {
    if (const Unsharding* const pending = std::get_if<Unsharding>(&state_); pending && !device_.is_cpu()) {
      for (const auto& work : pending->works) work->wait();
      uses().share();
    }
    uses().end();
  } catch (const std::exception&) {  // the device or a rank has failed: nobody uses the memory again
  }
}

// Copies rank 0's values into the shards (or the replica) and the master weights, one group at a time, so that
// initialisation needs one full group beyond what stays.
void Unit::load(UnitSource& source) {
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const at::ScalarType target = to_scalar_type(group.dtype);
    const bool convert = is_floating_point(group.dtype);
    const at::ScalarType type = convert ? at::kFloat : target;
    at::Tensor staging = at::zeros({group.layout.padded_numel()}, at::TensorOptions().dtype(type).device(device_));
    for (size_t i = 0; i < group.params.size(); ++i) {
      const at::Tensor& value = source.params[group.params[i]].front();
      const Range range = group.layout.param(i);
      at::Tensor dense = value.detach().to(device_);
      if (!convert) dense = dense.contiguous().view(target);
      staging.slice(0, range.begin, range.end).view(dense.sizes()).copy_(dense);
    }
    const Span span{staging.data_ptr(), staging.numel(), to_dtype(type)};
    comm_.broadcast(span, /*root=*/0, layout_.name)->wait();
    groups_[g].write_master({0, staging.numel()}, staging);
    groups_[g].write_parameters({0, staging.numel()}, staging);
  }
}

// Writes what this rank keeps, a piece at a time: needs memory for one piece on the host beyond what stays.
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

// Makes the user's tensors views of the unit's storages. Their old memory is freed when nobody else holds it.
void Unit::adopt_tensors(std::vector<std::vector<at::Tensor>> params) {
  guards_.resize(layout_.params.size());
  views_.resize(layout_.params.size());
  for (const FlatGroup& group : layout_.groups) {
    const at::ScalarType type = to_scalar_type(group.dtype);
    full_.push_back(make_empty_storage(group.layout.padded_numel() * element_size(group.dtype), device_));
    for (size_t i = 0; i < group.params.size(); ++i) {
      const size_t index = group.params[i];
      const ParamSpec& spec = layout_.params[index];
      guards_[index] =
          make_guard_storage(spec.numel() * element_size(group.dtype), device_, guard_message(spec.name()));
      for (at::Tensor& tensor : params[index]) {
        const bool same_bits = !is_floating_point(group.dtype);
        const auto options = at::TensorOptions().dtype(same_bits ? tensor.scalar_type() : type).device(device_);
        at::Tensor view = at::empty({0}, options);
        view.set_(full_.back(), group.layout.param(i).begin, spec.shape);
        tensor.set_data(view);
        views_[index] = view;
      }
    }
  }
  tensors_ = std::move(params);
}

bool Unit::prefetch() {
  if (!is_sharded()) return true;
  if (placement_ == Placement::kPersistent) {
    start_gather(persistent_.data());
    return true;
  }
  slot_ = ring_.try_acquire(layout_.full_bytes());
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
  const SideStream::Scope scope(gathers_.side);
  gathers_.shards.take();
  uses().take();
  Unsharding pending{{}, memory};
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const Span out{group_memory(memory, g), group.layout.padded_numel(), group.dtype};
    const ConstSpan in{shard_for_gather(g, out), group.layout.shard_numel(), group.dtype};
    pending.works.push_back(comm_.all_gather(out, in, layout_.name));
  }
  state_ = std::move(pending);
}

// A shard that lies elsewhere comes to its place in `full`, by the stream of gathers, and the gather goes on from
// there.
const void* Unit::shard_for_gather(size_t g, const Span& full) {
  ShardedGroup& group = groups_[g];
  if (!group.is_on_host() && !group.in_file()) return group.my_shard().const_data_ptr();
  char* const place = static_cast<char*>(full.data) + group.mine().begin * element_size(full.dtype);
  group.begin_copy_of_shard(place, gathers_.side);
  return place;
}

void Unit::wait() {
  if (Unsharding* const pending = std::get_if<Unsharding>(&state_)) {
    for (const auto& work : pending->works) work->wait();
    attach(pending->memory);
    gathered_ = std::move(pending->works);
    state_ = Unsharded{pending->memory};
  }
  if (!is_unsharded()) return;
  ready_.take();
  ready_.end();
  uses().share();
}

void Unit::reshard() {
  if (placement_ == Placement::kReplicated || is_sharded()) return;
  wait();  // a collective may still write to the memory
  detach();
  uses().end();
  if (slot_) ring_.release(std::exchange(slot_, nullptr));
  state_ = Sharded{};
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
  start_gather(std::get<Unsharded>(state_).memory);  // over the same values
  wait();
}

void Unit::attach(char* memory) {
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    set_memory(full_[g], group_memory(memory, g), device_);
    for (size_t i = 0; i < group.params.size() && !tensors_.empty(); ++i) {
      const size_t index = group.params[i];
      for (const at::Tensor& tensor : tensors_[index])
        if (!is_elsewhere(tensor, index)) point_at(tensor, full_[g], group.layout.param(i).begin);
    }
  }
}

void Unit::detach() {
  for (const c10::Storage& storage : full_) set_memory(storage, nullptr, device_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (const at::Tensor& tensor : tensors_[i])
      if (!is_elsewhere(tensor, i)) point_at(tensor, guards_[i], 0);
  }
}

char* Unit::group_memory(char* base, size_t group) const {
  for (const FlatGroup& before : std::span(layout_.groups).first(group))
    base += before.layout.padded_numel() * element_size(before.dtype);
  return base;
}

// The groups of a replicated unit lie one after another, as in a slot of the ring. A group without elements has no
// address.
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
  if (!tensor.has_storage()) return false;
  return std::any_of(full_.begin(), full_.end(),
                     [&](const c10::Storage& storage) { return storage.is_alias_of(tensor.storage()); });
}

void Unit::start_refresh() {
  if (placement_ != Placement::kReplicated) return reshard();
  if (comm_.world_size() == 1) return;
  // Not on the current stream: it would wait for the unit's parameters, where they come from the host.
  gathers_.side.follow();
  const SideStream::Scope scope(gathers_.side);
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    if (!group.requires_grad) continue;
    const Span out{groups_[g].kept_parameters().data_ptr(), group.layout.padded_numel(), group.dtype};
    const ConstSpan in{groups_[g].my_shard().const_data_ptr(), group.layout.shard_numel(), group.dtype};
    refreshing_.push_back(comm_.all_gather(out, in, layout_.name));
  }
}

void Unit::finish_refresh() {
  for (const auto& work : refreshing_) work->wait();
  refreshing_.clear();
  if (placement_ != Placement::kReplicated) return;
  for (const ShardedGroup& group : groups_) group.await_copies();
}

void Unit::return_tensors() {
  if (tensors_.empty()) return;
  unshard();
  wait();
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const at::Tensor whole = full(g);
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Range range = group.layout.param(i);
      const at::Tensor values = whole.slice(0, range.begin, range.end).clone();
      const size_t index = group.params[i];
      for (at::Tensor& tensor : tensors_[index]) {  // several that are tied share the memory
        if (!is_elsewhere(tensor, index))
          tensor.set_data(values.view(tensor.scalar_type()).view(layout_.params[index].shape));
        else if (is_swapped(tensor))
          tensor.set_data(tensor.detach().clone());
      }
    }
  }
  tensors_.clear();
  reshard();
}

void Unit::take_written() {
  if (placement_ != Placement::kPersistent || !is_unsharded()) return;
  const char* const whole = std::get<Unsharded>(state_).memory;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Range mine = groups_[g].mine();
    const at::Tensor shard = groups_[g].my_shard();
    if (device_.is_cpu()) {
      const int64_t size = shard.element_size();
      std::memcpy(shard.data_ptr(), group_memory(const_cast<char*>(whole), g) + mine.begin * size,
                  size_t(mine.size() * size));
    } else {
      shard.copy_(full(g).slice(0, mine.begin, mine.end));
    }
  }
}

bool Unit::is_elsewhere(const at::Tensor& tensor, size_t index) const {
  const at::Tensor& view = views_[index];
  const c10::StorageImpl* const storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const bool whole = storage == view.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (!whole && storage != guards_[index].unsafeGetStorageImpl()) return true;
  return tensor.storage_offset() != (whole ? view.storage_offset() : 0) || tensor.sizes() != view.sizes() ||
         tensor.strides() != view.strides();
}

// torch moves a storage as it is into memory that processes share (share_memory_).
bool Unit::has_other_memory(size_t group) const {
  const Unsharded* const unsharded = std::get_if<Unsharded>(&state_);
  return unsharded && full_[group].unsafeGetStorageImpl()->data_ptr().get() != group_memory(unsharded->memory, group);
}

bool Unit::is_moved(size_t index) const {
  for (const at::Tensor& tensor : tensors_.at(index))
    if (is_elsewhere(tensor, index)) return true;
  for (size_t g = 0; g < full_.size(); ++g)
    if (full_[g].is_alias_of(views_[index].storage())) return has_other_memory(g);
  return false;
}

bool Unit::prepare_take_back(size_t index) {
  const at::Tensor* first = nullptr;
  try {
    for (at::Tensor& tensor : tensors_[index]) {
      if (!is_elsewhere(tensor, index)) continue;
      // That of other parameters may be taken back before (two that were exchanged).
      if (is_swapped(tensor)) tensor.set_data(tensor.detach().clone());
      if (tensor.sizes() != views_[index].sizes()) return false;
      if (first && !at::equal(*first, tensor)) return false;
      first = &tensor;
    }
  } catch (const c10::Error&) {  // what it points at is sharded, or on no device that there is
    return false;
  }
  return true;
}

void Unit::take_back(bool values) {
  const at::NoGradGuard no_grad;
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatGroup& group = layout_.groups[g];
    const at::Tensor whole = full(g);
    const bool other = has_other_memory(g);
    if (other && values) {
      const auto same =
          view_memory(static_cast<char*>(full_[g].mutable_data()), whole.numel(), whole.scalar_type(), device_);
      whole.copy_(same);
    }
    if (other) set_memory(full_[g], whole.data_ptr(), device_);
    for (const size_t index : group.params) {
      for (const at::Tensor& tensor : tensors_[index]) {
        if (!values || !is_elsewhere(tensor, index)) continue;
        at::Tensor(views_[index]).copy_(tensor.detach());
        break;  // tied ones have the same
      }
      point_back(index);
    }
  }
}

void Unit::point_back(size_t index) {
  for (at::Tensor& tensor : tensors_[index]) {
    if (!is_elsewhere(tensor, index)) continue;
    tensor.set_data(views_[index]);
    if (!is_unsharded()) point_at(tensor, guards_[index], 0);
  }
}

void Unit::write_back(int root) {
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const at::Tensor whole = full(g);
    const Span span{whole.data_ptr(), whole.numel(), layout_.groups[g].dtype};
    comm_.broadcast(span, root, layout_.name)->wait();
    if (placement_ == Placement::kReplicated) continue;
    const Range mine = groups_[g].mine();
    groups_[g].write_parameters(mine, whole.slice(0, mine.begin, mine.end));
  }
  gathers_.after_current_stream();  // others may be gathered ahead in the same pass
}

}  // namespace zeroshard
