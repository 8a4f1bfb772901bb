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
#include "unit/unit_param.h"

namespace zeroshard {

// Where a unit's tensors and values come from.
struct UnitSource {
  // For each parameter of the layout, every tensor that reaches it (several when it is tied). They become views of
  // the unit; their dtype becomes the layout's.
  std::vector<std::vector<at::Tensor>> params;
  // Elements of parameter `index` of the layout, as zeroshard::ParameterReader; null: `params` have the values.
  std::function<void(size_t index, int64_t begin, int64_t end, float* out)> values;
};

// What the units of an engine gather on. A gather that is started ahead of its use waits for what the current stream
// was given before the last unshard() of a sharded unit, and not for compute since. So who writes shards tells by
// after_current_stream(): the first unit that a pass needs may be whole, or held, and then nothing is unsharded before
// others are gathered ahead.
struct GatherStream {
  explicit GatherStream(at::Device device) : shards(device), side(device) {}
  // The current stream may have written shards.
  void after_current_stream() {
    shards.share();
    shards.end();
  }
  StreamUses shards;
  SideStream side;
};

// Parameters that are gathered, used and freed together. Each parameter has a storage of its own, whose memory comes
// and goes with the unit's: see UnitParam. The memory of a sharded unit is a slot of the ring while the unit is not
// sharded. A small unit that stays whole until the next update (kPersistent) has one slot for itself.
//
// States: Sharded -> unshard() -> Unsharding -> wait() -> Unsharded -> reshard() -> Sharded. All verbs are idempotent.
// A replicated unit is always unsharded. While a unit is sharded, or gone without return_tensors(), reading one of its
// parameters throws an error that names the parameter.
class Unit {
 public:
  // Collective. `layout` and its `groups` outlive the unit. The values are written to the groups' parameters and master
  // weights; unless the source has `values`, those of rank 0 are taken on every rank.
  Unit(const UnitLayout& layout, std::span<ShardedGroup> groups, Placement placement, UnitSource source,
       at::Device device, Comm& comm, SlotRing& ring, GatherStream& gathers);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  const UnitLayout& layout() const { return layout_; }
  Placement placement() const { return placement_; }

  // Starts the gather when the ring has a free buffer; returns whether it is now under way or done.
  bool prefetch();
  void unshard();
  void wait();
  void reshard();
  // Returns when no rank reads this rank's shards any more for a gather that this rank has waited for: they may be
  // written. After such a gather others may still read; the step, too, orders that.
  void await_readers();
  // Takes part in a gather that another rank needs, whatever this unit's state, which stays.
  void take_part();
  bool is_sharded() const { return std::holds_alternative<Sharded>(state_); }
  // Whether a gather is under way that nobody has waited for.
  bool is_unsharding() const { return std::holds_alternative<Unsharding>(state_); }
  bool is_unsharded() const { return std::holds_alternative<Unsharded>(state_); }

  std::span<ShardedGroup> groups() const { return groups_; }
  // All padded_numel elements. Only while unsharded.
  at::Tensor full(size_t group) const;
  // Whether the memory of `tensor` is the unit's: one of its parameters, or a view of one.
  bool owns(const at::Tensor& tensor) const;
  // The tensors of parameter `index`, the first being the one users know.
  const std::vector<at::Tensor>& tensors(size_t index) const { return params_.at(index).tensors(); }
  // Around the time in which users hold the unit gathered: Note [Views that users keep]. A unit that is replicated
  // shares its memory with such views, as plain tensors do.
  void begin_hold();
  // The unit is sharded afterwards if its memory was left to views, unless it is kPersistent. `leaves`: else it goes on
  // being used as it is, and kept views throw.
  void end_hold(bool leaves);

  // After shards were written: replicated parameters are gathered in place, the others count as sharded again.
  // start_refresh() issues the collective, finish_refresh() completes it.
  void start_refresh();
  void finish_refresh();
  // Makes the tensors ordinary ones again, with memory of their own and the values that they have. Collective where
  // they are sharded. They are not the unit's any more: it is only to be destroyed.
  void return_tensors();
  // Copies the user's writes to parameters into this rank's shard, if the shard is a copy of the parameters and these
  // are present (kPersistent). No rank may gather meanwhile.
  void take_written();
  // As UnitParam's. Until a moved tensor is taken back the unit leaves it alone.
  bool is_moved(size_t index) const { return params_.at(index).is_moved(); }
  bool prepare_take_back(size_t index) { return params_.at(index).prepare_take_back(); }
  void point_back(size_t index) { params_.at(index).point_back(); }
  // Of all parameters. Only while unsharded.
  void take_back(bool values);
  // Writes the (unsharded) full parameters back to this rank's shard, taking them from rank `root` first.
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
  char* group_memory(char* base, size_t group) const;
  char* replicated_memory() const;

  const UnitLayout& layout_;
  std::span<ShardedGroup> groups_;  // as layout_.groups
  Placement placement_;
  at::Device device_;
  Comm& comm_;
  SlotRing& ring_;
  GatherStream& gathers_;
  StreamUses ready_;                // the streams for which the gather was awaited, one after another
  SlotRing::Slot* slot_ = nullptr;  // behind the gathered parameters: kPersistent always has one, kReplicated never
  std::vector<UnitParam> params_;   // as layout_.params
  std::vector<std::unique_ptr<Work>> refreshing_;
  std::vector<std::unique_ptr<Work>> gathered_;  // the last gather that was waited for
  std::variant<Sharded, Unsharding, Unsharded> state_;
};

}  // namespace zeroshard
