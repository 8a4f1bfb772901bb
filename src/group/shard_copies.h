#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "device/flat_buffer.h"
#include "device/streams.h"
#include "group/optimizer_states.h"
#include "group/parameter_copies.h"

namespace zeroshard {

class ShardedGroup;

// Brings 16-bit parameters that a device updates, where their states are, to the host or the file where they lie: the
// reverse of ParameterCopies. Piece after piece goes through a few buffers of the device, by a stream of its own, while
// the device works on the pieces between; the host waits for none. To files it waits for each piece, whose buffer is
// needed for the next.
class ShardCopies {
 public:
  struct Options {
    at::Device device = at::kCPU;
    int64_t slot_bytes = 0;  // of a piece
    int slots = 0;           // two at least, or the device waits for each piece
    int64_t piece_numel = 0;
  };
  ShardCopies(const Options& options, Ledger& ledger);
  ShardCopies(const ShardCopies&) = delete;
  ShardCopies& operator=(const ShardCopies&) = delete;
  // Waits for what is under way: then the memory of parameters may go.
  ~ShardCopies();

  using Access = OptimizerStates::Access;
  using Ways = ParameterCopies::Ways;
  // As ParameterCopies::lend(), with states and parameters on the device. For what is read of the parameters the host
  // waits; for what is written nobody waits here: see ShardedGroup::await_copies().
  void lend(ShardedGroup& group, Range range, Access access, Ways ways, const ParameterCopies::Use& use);
  void lend_master(ShardedGroup& group, Range range, Access access, Ways ways, const ParameterCopies::Use& use);
  // The host waits for all copies.
  void wait() const;

 private:
  struct Slot {
    FlatBuffer memory;
    StreamUses uses;
  };
  struct Lent;

  using Lend = std::function<void(const OptimizerStates::Borrower& borrower)>;
  void lend_pieces(const Lent& lent, const Lend& lend_states);
  void use_piece(const Lent& lent, Range range, const StateTensors& states, const at::Tensor& away);
  void send(const Lent& lent, const at::Tensor& params, const at::Tensor& away, Slot& slot);

  Options options_;
  std::vector<Slot> slots_;
  size_t turn_ = 0;
  SideStream stream_;
};

}  // namespace zeroshard
