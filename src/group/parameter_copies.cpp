#include "group/parameter_copies.h"

#include <algorithm>
#include <utility>

#include "device/dtype.h"
#include "device/host_copy.h"
#include "group/parameter_checksum.h"
#include "group/sharded_group.h"

namespace zeroshard {

ParameterCopies::ParameterCopies(const Options& options, Ledger& ledger) : options_(options), stream_(options.device) {
  for (int i = 0; i < options_.slots; ++i) {
    slots_.push_back(
        {FlatBuffer::on_host(options_.slot_bytes, options_.device, options_.pin, ledger, Category::kPinned),
         std::nullopt});
  }
}

ParameterCopies::~ParameterCopies() {
  try {
    wait();
  } catch (const std::exception&) {  // the device has failed, and copies nothing more
  }
}

void ParameterCopies::wait() const {
  stream_.record().synchronize();
}

// What of a group is lent at a time.
struct ParameterCopies::Lent {
  ShardedGroup& group;
  Range part;
  const StateTensors& states;
  Ways ways;
  bool is_master;  // the parameters are fp32

  at::Tensor on_device(Range range) const { return group.updated_memory().slice(0, range.begin, range.end); }
  StateTensors on_host(Range range) const { return states.slice(range.begin - part.begin, range.end - part.begin); }
};

void ParameterCopies::lend(ShardedGroup& group, Range range, Access access, Ways ways, const Use& use) {
  lend_pieces(group, access, ways, use, [&](Access of_states, const OptimizerStates::Borrower& borrower) {
    group.states().lend(range, of_states, borrower);
  });
}

void ParameterCopies::lend_master(ShardedGroup& group, Range range, Access access, Ways ways, const Use& use) {
  lend_pieces(group, access, ways, use, [&](Access of_states, const OptimizerStates::Borrower& borrower) {
    group.states().lend_one(range, kMasterWeights, of_states, [&](Range part, const at::Tensor& master) {
      borrower(part, StateTensors{master, {}});
    });
  });
}

void ParameterCopies::lend_pieces(ShardedGroup& group, Access access, Ways ways, const Use& use,
                                  const Lend& lend_states) {
  const bool is_master = group.flat().dtype == DType::kFloat32;
  const bool reads = access == Access::kRead && !(is_master && ways.reads);
  try {
    stream_.follow();
    lend_states(reads ? Access::kRead : Access::kModify, [&](Range part, const StateTensors& states) {
      use_pieces({group, part, states, ways, is_master}, use);
    });
    if (!ways.writes) return;
    group.written_until(stream_.record());
    if (is_master) group.states().read_until(stream_.record());
  } catch (...) {  // whoever comes next must not meet copies that nobody knows of
    wait();
    throw;
  }
}

void ParameterCopies::remember(ShardedGroup& group, ParameterChecksum& checksum) {
  stream_.follow();  // the device may have updated a part
  const SideStream::Scope scope(stream_);
  checksum.remember(group.updated_memory());
  group.written_until(stream_.record());
}

void ParameterCopies::use_pieces(const Lent& lent, const Use& use) {
  const auto piece_at = [&](int64_t at) {
    return begin(lent, {at, std::min(at + options_.piece_numel, lent.part.end)});
  };
  Piece next = piece_at(lent.part.begin);
  while (next.range.size() > 0) {
    Piece piece = std::move(next);
    next = piece.range.end < lent.part.end ? piece_at(piece.range.end) : Piece{};
    if (piece.arrived) piece.arrived->synchronize();
    StateTensors states = lent.on_host(piece.range);
    if (lent.is_master) states.master = at::Tensor();
    use(piece.range, states, piece.params);
    if (lent.ways.writes) send(lent, piece);
  }
}

// The next piece, whose parameters come to the host while the one before is in use.
ParameterCopies::Piece ParameterCopies::begin(const Lent& lent, Range range) {
  Piece piece{range, lent.on_host(range).master, nullptr, std::nullopt};
  if (!lent.is_master) {
    piece.slot = &slots_[turn_++ % slots_.size()];
    if (piece.slot->last) piece.slot->last->synchronize();
    piece.params = piece.slot->memory.view(to_scalar_type(lent.group.flat().dtype), 0, range.size());
  }
  if (!lent.ways.reads) return piece;
  const SideStream::Scope scope(stream_);
  const at::Tensor from = lent.on_device(range);
  begin_copy_to_host(piece.params.data_ptr(), from.const_data_ptr(), int64_t(from.nbytes()), options_.device);
  piece.arrived = stream_.record();
  if (piece.slot) piece.slot->last = stream_.record();
  return piece;
}

void ParameterCopies::send(const Lent& lent, Piece& piece) {
  const SideStream::Scope scope(stream_);
  const at::Tensor to = lent.on_device(piece.range);
  begin_copy_from_host(to.data_ptr(), piece.params.const_data_ptr(), int64_t(to.nbytes()), options_.device);
  if (piece.slot) piece.slot->last = stream_.record();
}

}  // namespace zeroshard
