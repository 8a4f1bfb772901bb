#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "device/slot_ring.h"
#include "device/streams.h"
#include "group/sharded_group.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "unit/coded_refresh.h"
#include "unit/unit_param.h"

namespace zeroshard {

// The tensors and the values of a unit's parameters.
struct UnitSource {
  // For each parameter of the layout: all tensors that refer to it (several if it is tied). The unit turns
  // these tensors into views of its own memory, in the layout's dtype.
  std::vector<std::vector<at::Tensor>> params;
  // Reads elements of parameter `index` of the layout, like zeroshard::ParameterReader. Null means that `params` have
  // the values.
  std::function<void(size_t index, int64_t begin, int64_t end, float* out)> values;
};

// The stream on which the units of an engine gather. A gather that is started ahead of its use waits only for work that
// the current stream had at the last unshard() of a sharded unit. So the gather overlaps later compute. Code that
// writes shards must call after_current_stream(). Without this call, a gather might not wait for the write: if the
// first unit of a pass is whole or held, no unshard() of a sharded unit comes between the write and a gather that is
// started ahead.
struct GatherStream {
  explicit GatherStream(at::Device device) : shards(device), side(device) {}
  // Makes later gathers wait for the current stream, because it might have written shards.
  void after_current_stream() {
    shards.share();
    shards.end();
  }
  StreamUses shards;
  SideStream side;
};

// Parameters that are gathered, used and freed together. Each parameter has a storage of its own, whose memory comes
// and goes with the memory of the unit (see UnitParam). While a sharded unit is unsharded, its memory is a slot of the
// ring. A small unit that stays whole until the next update (kPersistent) keeps one slot for itself.
//
// The states are Sharded -> unshard() -> Unsharding -> wait() -> Unsharded -> reshard() -> Sharded. Calling one of
// these functions twice is the same as calling it once. A replicated unit is always unsharded. While a unit is sharded,
// or after it was destroyed without return_tensors(), reading one of its parameters throws an error that names the
// parameter.
class Unit {
 public:
  struct Comms {
    Comm& gather;  // the ranks that shard one copy of the unit among themselves
    Comm& all;     // the ranks of all replicas
    // Gathers the parts of 16-bit parameters as 8-bit numbers; null: `parts` gathers them as they are.
    CodedRefresh* codes = nullptr;
    Comm* parts = nullptr;  // the ranks that each update a part of this rank's shard; null: this rank updates all of it
  };
  // Collective. `layout` and `groups` must outlive the unit. Writes the parameters' values to the parameters and master
  // weights of `groups`. If the source has `values`, each rank reads them. Otherwise every rank takes those of rank 0.
  Unit(const UnitLayout& layout, std::span<ShardedGroup> groups, Placement placement, UnitSource source,
       at::Device device, Comms comms, SlotRing& ring, GatherStream& gathers);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  const UnitLayout& layout() const { return layout_; }
  Placement placement() const { return placement_; }

  // Starts the gather if the ring has a free buffer. Returns whether the gather is now running, or the unit is
  // unsharded.
  bool prefetch();
  void unshard();
  void wait();
  void reshard();
  // Waits until no other rank reads this rank's shards for a gather that this rank has already waited for. After that
  // this rank may write to the shards. For other gathers, the order of a step ensures that nobody reads while this rank
  // writes.
  void await_readers();
  // Takes part in a gather that another rank needs, in whatever state this unit is. The state does not change.
  void take_part();
  bool is_sharded() const { return std::holds_alternative<Sharded>(state_); }
  // Returns whether a gather was started that nobody has waited for.
  bool is_unsharding() const { return std::holds_alternative<Unsharding>(state_); }
  bool is_unsharded() const { return std::holds_alternative<Unsharded>(state_); }

  std::span<ShardedGroup> groups() const { return groups_; }
  // Returns all padded_numel() elements of a group. The unit must be unsharded.
  at::Tensor full(size_t group) const;
  // Returns whether `tensor` lies in the unit's memory, because it is a parameter of the unit or a view of one.
  bool owns(const at::Tensor& tensor) const;
  // Returns the tensors of parameter `index`. The first is the one that users know.
  const std::vector<at::Tensor>& tensors(size_t index) const { return params_.at(index).tensors(); }
  // begin_hold() and end_hold() bound the time in which users hold the unit gathered; see Note [Views that users keep].
  // They do nothing for a replicated unit, which shares its memory with such views, as plain tensors do.
  void begin_hold();
  // `leaves` says whether the unit goes out of use. If it is true, and users keep views of the unsharded unit, the
  // views take over the unit's memory. The unit then becomes sharded, but a kPersistent unit copies the values to new
  // memory. If `leaves` is false, the unit stays in use, and reading a view that users keep throws.
  void end_hold(bool leaves);

  // After each write to the elements that this rank updates, start_refresh() and then finish_refresh() must be called.
  // If several ranks have each updated a part of the shard, they gather these parts. If the unit is replicated, they
  // then gather the shards in place. A unit that is not replicated becomes sharded.
  void start_refresh();
  void finish_refresh();
  // Turns the parameters into ordinary tensors with memory of their own and their current values. Collective if they
  // are sharded. After that, the unit may only be destroyed.
  void return_tensors();
  // Copies the user's writes to parameters into this rank's shard if the unit is kPersistent and unsharded. The user
  // has written to the whole parameters, and the shard is a copy of a part of them. No rank may gather the unit during
  // the call.
  void take_written();
  // is_moved() and prepare_take_back() call the functions of UnitParam. The unit does not change a moved tensor until
  // take_back().
  bool is_moved(size_t index) const { return params_.at(index).is_moved(); }
  bool prepare_take_back(size_t index) { return params_.at(index).prepare_take_back(); }
  void point_back(size_t index) { params_.at(index).point_back(); }
  // Calls UnitParam::take_back() for all parameters. The unit must be unsharded.
  void take_back(bool values);
  // Copies the unsharded parameters of rank `root` to those of all ranks, and writes this rank's part to its shard.
  // The unit must be unsharded. Collective over the ranks of all replicas.
  void write_back(int root);

 private:
  struct Sharded {};
  struct Unsharding {
    std::vector<std::unique_ptr<Work>> works;
    char* memory;
  };
  struct Unsharded {
    char* memory;
  };

  void leave_memory() noexcept;
  void load(UnitSource& source);
  void read(const UnitSource& source);
  void start_gather(char* memory);
  const void* shard_for_gather(size_t group, const Span& full);
  void attach(char* memory);
  void detach();
  // gather_parts() starts to gather the parts of this rank's shard, and gather_shards() the shards of a replicated
  // unit. Both gather only trained groups.
  void gather_parts();
  void gather_shards();
  void end_gathers_in_place();
  bool has_codes(const ShardedGroup& group) const {
    return comms_.codes != nullptr && group.is_trained() && group.flat().dtype != DType::kFloat32;
  }
  char* group_memory(char* base, size_t group) const;
  char* replicated_memory() const;

  const UnitLayout& layout_;
  std::span<ShardedGroup> groups_;  // parallel to layout_.groups
  Placement placement_;
  at::Device device_;
  Comms comms_;
  SlotRing& ring_;
  GatherStream& gathers_;
  StreamUses ready_;  // the streams that have waited for the gather, one after another
  // The memory of the gathered parameters. A kPersistent unit always has a slot, a kReplicated unit never.
  SlotRing::Slot* slot_ = nullptr;
  std::vector<UnitParam> params_;  // parallel to layout_.params
  std::vector<std::unique_ptr<Work>> refreshing_;
  std::vector<std::unique_ptr<Work>> gathered_;  // the last gather that this rank has waited for
  std::variant<Sharded, Unsharding, Unsharded> state_;
};

}  // namespace zeroshard
