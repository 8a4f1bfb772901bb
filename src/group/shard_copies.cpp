#include "group/shard_copies.h"

#include "device/dtype.h"
#include "device/host_copy.h"
#include "group/sharded_group.h"

namespace zeroshard {

ShardCopies::ShardCopies(const Options& options, Ledger& ledger) : options_(options), stream_(options.device) {
  for (int i = 0; i < options_.slots; ++i)
    slots_.push_back(
        {FlatBuffer(options_.slot_bytes, options_.device, ledger, Category::kGatherRing), StreamUses(options_.device)});
}

ShardCopies::~ShardCopies() {
  try {
    wait();
  } catch (const std::exception&) {  // the device has failed, and copies nothing more
  }
}

void ShardCopies::wait() const {
  stream_.record().synchronize();
}

// What of a group is lent, and to whom.
struct ShardCopies::Lent {
  ShardedGroup& group;
  Ways ways;
  const ParameterCopies::Use& use;
};

void ShardCopies::lend(ShardedGroup& group, Range range, Access access, Ways ways, const ParameterCopies::Use& use) {
  lend_pieces({group, ways, use},
              [&](const OptimizerStates::Borrower& borrower) { group.states().lend(range, access, borrower); });
}

void ShardCopies::lend_master(ShardedGroup& group, Range range, Access access, Ways ways,
                              const ParameterCopies::Use& use) {
  lend_pieces({group, ways, use}, [&](const OptimizerStates::Borrower& borrower) {
    group.states().lend_one(range, kMasterWeights, access, [&](Range part, const at::Tensor& master) {
      borrower(part, StateTensors{master, {}});
    });
  });
}

void ShardCopies::lend_pieces(const Lent& lent, const Lend& lend_states) {
  ShardedGroup& group = lent.group;
  if (lent.ways.reads) group.await_copies();
  try {
    group.begin_writes_of(stream_);
    lend_states([&](Range part, const StateTensors& states) {
      group.lend_away(part, lent.ways, options_.piece_numel, [&](Range piece, const at::Tensor& away) {
        use_piece(lent, piece, states.slice(piece.begin - part.begin, piece.end - part.begin), away);
      });
    });
    if (lent.ways.writes && !group.in_file()) group.written_until(stream_.record());
  } catch (...) {  // whoever comes next must not meet copies that nobody knows of
    wait();
    throw;
  }
}

// `away`: the parameters of the piece, on the host.
void ShardCopies::use_piece(const Lent& lent, Range range, const StateTensors& states, const at::Tensor& away) {
  Slot& slot = slots_[turn_++ % slots_.size()];
  const at::Tensor params = slot.memory.view(away.scalar_type(), 0, range.size());
  slot.uses.take();
  if (lent.ways.reads)
    copy_from_host(params.data_ptr(), away.const_data_ptr(), int64_t(away.nbytes()), options_.device);
  lent.use(range, states, params);
  if (lent.ways.writes) send(lent, params, away, slot);
  slot.uses.end();  // the next piece in it waits for this copy, and for none that comes later
}

void ShardCopies::send(const Lent& lent, const at::Tensor& params, const at::Tensor& away, Slot& slot) {
  const auto bytes = int64_t(away.nbytes());
  if (lent.group.in_file()) return copy_to_host(away.data_ptr(), params.const_data_ptr(), bytes, options_.device);
  stream_.follow();
  const SideStream::Scope scope(stream_);
  slot.uses.share();
  begin_copy_to_host(away.data_ptr(), params.const_data_ptr(), bytes, options_.device);
}

}  // namespace zeroshard
