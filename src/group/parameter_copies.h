#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <optional>
#include <vector>

#include "device/flat_buffer.h"
#include "device/streams.h"
#include "group/optimizer_states.h"

namespace zeroshard {

class ParameterChecksum;
class ShardedGroup;

// Brings parameters from a device to the host and back, where their optimizer states lie in the host's memory: piece
// after piece, by a stream of its own, while the host works on the pieces between.
//
// 16-bit parameters go through a few buffers of pinned memory. fp32 parameters are copied from and to their master
// weights; where these are lent by a file, in memory that is not pinned, so that the host waits for each copy.
class ParameterCopies {
 public:
  struct Options {
    at::Device device = at::kCPU;
    int64_t slot_bytes = 0;  // of a piece of 16-bit parameters; 0: there are none
    int slots = 0;           // two at least, if some group has more than one piece
    int64_t piece_numel = 0;
    bool pin = true;
  };
  ParameterCopies(const Options& options, Ledger& ledger);
  ParameterCopies(const ParameterCopies&) = delete;
  ParameterCopies& operator=(const ParameterCopies&) = delete;
  // Waits for what is under way: then the memory of states may go.
  ~ParameterCopies();

  // Whether the parameters are read from where they lie, and written there.
  struct Ways {
    bool reads = false, writes = false;
  };
  // `states` and `params`: of the elements in `part`, on the host. Where parameters are fp32, `params` are the master
  // weights, and `states` has no others.
  using Use = std::function<void(Range part, const StateTensors& states, const at::Tensor& params)>;
  // Calls `use` for consecutive parts that make up `range` of the states of `group`. Before, the parameters are copied
  // to the host, after what the current stream was given; afterwards back, for which nobody waits here: see
  // ShardedGroup::await_copies(). With kRead, `use` writes to no state.
  using Access = OptimizerStates::Access;
  void lend(ShardedGroup& group, Range range, Access access, Ways ways, const Use& use);
  // The same for the master weights alone: `states` has no others, and others are not fetched.
  void lend_master(ShardedGroup& group, Range range, Access access, Ways ways, const Use& use);
  // Makes `checksum` that of the parameters, after all copies.
  void remember(ShardedGroup& group, ParameterChecksum& checksum);
  // The host waits for all copies.
  void wait() const;

 private:
  struct Slot {
    FlatBuffer memory;
    std::optional<c10::Event> last;  // copy from it or to it
  };
  // A piece of the group that is lent: its elements, and its parameters on the host.
  struct Piece {
    Range range;
    at::Tensor params;
    Slot* slot = nullptr;               // null: the parameters are the master weights
    std::optional<c10::Event> arrived;  // on the host
  };
  struct Lent;

  using Lend = std::function<void(Access access, const OptimizerStates::Borrower& borrower)>;
  void lend_pieces(ShardedGroup& group, Access access, Ways ways, const Use& use, const Lend& lend_states);
  void use_pieces(const Lent& lent, const Use& use);
  Piece begin(const Lent& lent, Range range);
  void send(const Lent& lent, Piece& piece);

  Options options_;
  std::vector<Slot> slots_;
  size_t turn_ = 0;
  SideStream stream_;
};

}  // namespace zeroshard
