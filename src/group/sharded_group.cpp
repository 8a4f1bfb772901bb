#include "group/sharded_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/cut.h"

namespace zeroshard {
namespace {

Range positions_of(Extent extent, const ShardLayout& layout, int rank) {
  if (extent == Extent::kNothing) return {};
  if (extent == Extent::kPart) return layout.part(rank);
  return extent == Extent::kWhole ? Range{0, layout.padded_numel()} : layout.shard(rank);
}

}  // namespace

ShardedGroup::ShardedGroup(const UnitLayout& unit, size_t index, const UnitPlacement& place, Options options,
                           std::unique_ptr<Array> parameters, std::unique_ptr<Array> states)
    : unit_(unit),
      index_(index),
      place_(place.groups.at(index)),
      options_(std::move(options)),
      kept_(positions_of(place_.parameters.extent, layout(), options_.rank)),
      updated_(positions_of(place_.updated, layout(), options_.rank)),
      parameters_(std::move(parameters)),
      states_(std::move(states)),
      updates_(num_params(), 0) {
  const bool is_host_asked = options_.users_may_write && options_.to_host && updated_.size() > 0;
  if (is_host_asked && ParameterChecksum::can_be_on(options_.device)) checksum_.emplace(options_.device);
}

at::Tensor ShardedGroup::kept_parameters() const {
  await_copies();
  return memory(kept_);
}

at::Tensor ShardedGroup::my_shard() const {
  await_copies();
  return memory(shard());
}

at::Tensor ShardedGroup::updated_parameters() const {
  await_copies();
  return memory(updated_);
}

at::Tensor ShardedGroup::updated_part(Range range) const {
  await_copies();
  return parameters_->part(range + (updated_.begin - kept_.begin));
}

void ShardedGroup::await_copies() const {
  if (writing_ && is_resident()) current_stream_waits(*writing_, options_.device);
  if (writing_ && !is_resident()) {
    writing_->synchronize();
    writing_.reset();
  }
  if (!reading_) return;
  reading_->synchronize();
  reading_.reset();
}

void ShardedGroup::begin_copy_of_shard(void* to, const SideStream& stream) {
  ZS_ASSERT(!is_resident(), "the shard of ", unit_.name, " is on the device");
  {
    const SideStream::Scope scope(stream);
    if (writing_) current_stream_waits(*writing_, options_.device);
  }
  parameters_->begin_read(shard() - kept_.begin, to, options_.device, stream);
  if (parameters_->in_memory()) reading_ = stream.record();
}

Range ShardedGroup::state_range(size_t index) const {
  const Range positions = intersect(layout().param(index), updated_);
  if (positions.size() == 0) return {};
  return positions - updated_.begin;
}

at::Tensor ShardedGroup::memory(Range positions) const {
  return parameters_->view(positions - kept_.begin);
}

void ShardedGroup::write_master(Range positions, const at::Tensor& values) {
  if (!has_master()) return;
  const Range both = intersect(positions, updated_);
  if (both.size() == 0) return;
  forget_parameters();
  states_->lend_one(both - updated_.begin, kMasterWeights, Access::kOverwrite, [&](Range part, const at::Tensor& to) {
    to.copy_(cut(values, part + (updated_.begin - positions.begin)));
  });
}

void ShardedGroup::write_parameters(Range positions, const at::Tensor& values) {
  const Range both = intersect(positions, kept_);
  if (both.size() == 0) return;
  at::Tensor from = cut(values, both - positions.begin);
  // The values are copied to the host before they are converted, because a conversion on the device would need memory
  // there.
  if (!is_resident()) from = from.cpu();
  if (parameters_->in_memory()) {
    if (WriteHold* const hold = states_ ? states_->hold() : nullptr) hold->await_readers();
    await_copies();
  }
  const Range here = both - kept_.begin;
  parameters_->lend(here, Access::kOverwrite,
                    [&](Range part, const at::Tensor& params) { params.copy_(cut(from, part - here.begin)); });
}

// If a group has no master weights, its fp32 parameters are their own. Code that writes them then updates master
// weights, which it must also read, so it needs kModify.
ShardedGroup::Access ShardedGroup::access_to_parameters(Ways ways) const {
  if (!ways.writes) return Access::kRead;
  return ways.reads || !has_master() ? Access::kModify : Access::kOverwrite;
}

ShardedGroup::Split ShardedGroup::split(Range range) const {
  if (!options_.to_host && !options_.to_device) return {range, {}};
  const int64_t border = place_.numel_of_host(layout());
  return {{std::min(range.begin, border), std::min(range.end, border)},
          {std::max(range.begin, border), std::max(range.end, border)}};
}

void ShardedGroup::await_readers_of_parameters(Ways ways) const {
  WriteHold* const hold = parameters_->hold();
  if (hold != nullptr && access_to_parameters(ways) != Access::kRead) hold->await_readers();
}

void ShardedGroup::lend_parameters(Range range, Ways ways, const Array::BorrowerOfOne& use) {
  const int64_t first = updated_.begin - kept_.begin;
  parameters_->lend(range + first, access_to_parameters(ways),
                    [&](Range part, const at::Tensor& params) { use(part - first, params); });
}

void ShardedGroup::lend(Range range, Access access, Ways ways, const Use& use) {
  const auto lend_all = [this](Range part, Access of_states, const Array::Borrower& borrower) {
    states_->lend(part, of_states, borrower);
  };
  lend_updated(range, access, ways, lend_all, use);
}

void ShardedGroup::lend_master(Range range, Access access, Ways ways, const MasterUse& use) {
  // fp32 parameters that are copied to the host overwrite their master weights there. So even a call that only reads
  // may change master weights.
  if (access != Access::kRead || (ways.reads && flat().dtype == DType::kFloat32)) forget_parameters();
  const auto lend_one = [this](Range part, Access of_states, const Array::Borrower& borrower) {
    states_->lend_one(part, kMasterWeights, of_states, [&](Range lent, const at::Tensor& master) {
      borrower(lent, StateTensors{master, {}});
    });
  };
  lend_updated(range, access, ways, lend_one, [&](Range part, const StateTensors& states, const at::Tensor& params) {
    if (states.master.defined()) use(part, states.master, params);  // otherwise the parameters are the master weights
  });
}

void ShardedGroup::lend_updated(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use) {
  const auto [first, rest] = split(range);
  if (options_.to_host) {
    await_copies();  // another stream than the mover's may have made the last copies
    if (rest.size() > 0) lend_rest(rest, access, lend_states, use);
    if (first.size() > 0) lend_to_host(first, access, ways, lend_states, use);
    return;
  }
  await_readers_of_parameters(ways);
  // await_copies() is called before the copies of `rest` begin, so that `first` does not wait for them.
  if (first.size() > 0) await_copies();
  if (rest.size() > 0) lend_to_device(rest, access, ways, lend_states, use);
  if (first.size() == 0) return;
  lend_states(first, access, [&](Range lent, const StateTensors& states) {
    lend_parameters(lent, ways, [&](Range part, const at::Tensor& params) {
      use(part, part == lent ? states : states.slice(part - lent.begin), params);
    });
  });
}

void ShardedGroup::lend_rest(Range rest, Access access, const LendStates& lend_states, const Use& use) {
  const at::Tensor own = updated_memory();  // need not wait, because pending copies are of elements of the host
  lend_states(rest, access, [&](Range part, const StateTensors& lent) {
    StateTensors states = lent;
    if (flat().dtype == DType::kFloat32) states.master = at::Tensor();
    use(part, states, cut(own, part));
  });
}

void ShardedGroup::lend_to_host(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use) {
  Mover& mover = *options_.to_host;
  const bool are_masters = flat().dtype == DType::kFloat32;
  const bool reads = access == Access::kRead && !(are_masters && ways.reads);
  const at::Tensor own = updated_memory();
  try {
    mover.follow();
    lend_states(range, reads ? Access::kRead : Access::kModify, [&](Range part, const StateTensors& lent) {
      const at::Tensor near = are_masters ? lent.master : at::Tensor();
      mover.lend_on_host(cut(own, part), near, ways, [&](Range piece, const at::Tensor& params) {
        StateTensors states = lent.slice(piece);
        if (are_masters) states.master = at::Tensor();
        use(piece + part.begin, states, params);
      });
    });
    if (!ways.writes) return;
    written_until(mover.record());
    if (are_masters) states_->read_until(mover.record());
  } catch (...) {  // writing_ and reading_ do not know the copies that have begun, so wait for them here
    mover.wait();
    throw;
  }
}

void ShardedGroup::lend_to_device(Range range, Access access, Ways ways, const LendStates& lend_states,
                                  const Use& use) {
  Mover& mover = *options_.to_device;
  if (ways.reads) await_copies();
  try {
    if (reading_) {  // a gather may still read the shard, which the mover will overwrite
      const SideStream::Scope scope(mover.stream());
      current_stream_waits(*reading_, options_.device);
    }
    const bool in_memory = parameters_->in_memory() != nullptr;
    lend_states(range, access, [&](Range lent, const StateTensors& states) {
      lend_parameters(lent, ways, [&](Range part, const at::Tensor& away) {
        for (int64_t at = part.begin; at < part.end; at += mover.piece_numel()) {
          const Range piece{at, std::min(at + mover.piece_numel(), part.end)};
          // If the parameters are in a file, the host waits for each piece to be copied back, because `away` is written
          // to the file as soon as it is no longer lent.
          mover.lend_on_device(cut(away, piece - part.begin), ways,
                               /*waits=*/!in_memory,
                               [&](const at::Tensor& params) { use(piece, states.slice(piece - lent.begin), params); });
        }
      });
    });
    if (ways.writes && in_memory) written_until(mover.record());
  } catch (...) {  // for the same reason as in lend_to_host()
    mover.wait();
    throw;
  }
}

void ShardedGroup::lend_beside(Range range, const at::Tensor& params, const Use& use) {
  states_->lend(range, Access::kModify, [&](Range part, const StateTensors& lent) {
    const at::Tensor to = cut(params, part);
    if (flat().dtype != DType::kFloat32) return use(part, lent, to);
    StateTensors states = lent;
    const at::Tensor master = std::exchange(states.master, at::Tensor());
    use(part, states, master);
    to.copy_(master);
  });
}

bool ShardedGroup::is_untouched() const {
  if (!checksum_) return false;
  await_copies();
  return checksum_->is_of(updated_memory());
}

bool ShardedGroup::was_written() const {
  return checksum_ && checksum_->is_known() && !is_untouched();
}

void ShardedGroup::remember_parameters() {
  if (!checksum_) return;
  const Mover& mover = *options_.to_host;
  mover.follow();  // the device may have updated some of the elements on the current stream
  const SideStream::Scope scope(mover.stream());
  checksum_->remember(updated_memory());
  written_until(mover.record());
}

void ShardedGroup::copy_parameters_to_master() {
  if (!has_master()) return;
  lend_master({0, updated_.size()}, Array::Access::kOverwrite, {.reads = true},
              [](Range, const at::Tensor& master, const at::Tensor& params) { master.copy_(params); });
}

void ShardedGroup::copy_master_to_parameters() {
  if (!has_master()) return;
  lend_master({0, updated_.size()}, Array::Access::kRead, {.writes = true},
              [](Range, const at::Tensor& master, const at::Tensor& params) { params.copy_(master); });
}

}  // namespace zeroshard
