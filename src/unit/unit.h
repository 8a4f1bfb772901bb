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
  // Lists, for each parameter of the layout, all tensors that refer to it (several if it is tied). The unit turns these
  // tensors into views of storages that it manages. If a parameter's dtype in the layout is a floating-point one, its
  // tensors get this dtype.
  std::vector<std::vector<at::Tensor>> params;
  // Writes the elements [begin, end) of parameter `index` of the layout to `out`, like zeroshard::ParameterReader. Null
  // means that `params` have the values.
  std::function<void(size_t index, int64_t begin, int64_t end, float* out)> values;
};

// The stream on which the units of an engine gather. A gather that unshard() or prefetch() starts waits for earlier
// users of its slot, and for the work that was queued on the current stream when after_current_stream() was last
// called. It does not wait for work that was queued later. Unit::unshard() calls after_current_stream() if the unit is
// sharded. prefetch() never does, so that a gather that is started ahead of its use overlaps later compute. Code that
// writes shards must therefore call after_current_stream() itself, and not rely on an unshard() of another unit, which
// may not be sharded. Otherwise a later prefetch() might gather before the write is done.
struct GatherStream {
  explicit GatherStream(at::Device device) : shard_writes(device), stream(device) {}
  // Makes later gathers wait for the present work of the current stream, because this work might write shards.
  void after_current_stream() {
    shard_writes.share();
    shard_writes.end();
  }
  StreamUses shard_writes;
  SideStream stream;
};

// Parameters that are gathered, used and freed together. Each parameter has a storage of its own, to which the unit
// attaches memory while the parameter can be read (see UnitParam). A kSharded unit borrows a slot of the ring while it
// is gathered. A kPersistent unit, which is small and stays gathered until the next update, has one slot for as long as
// it exists. The memory of a kReplicated unit belongs to its groups.
//
// The states are Sharded -> unshard() -> Unsharding -> wait() -> Unsharded -> reshard() -> Sharded. unshard() starts
// the gather, and wait() waits for it. reshard() first waits for a gather that still runs. A second call in a row of
// one of these functions changes nothing. A kReplicated unit is always Unsharded. Reading a parameter throws an error
// that names it while the unit is not Unsharded, and after the unit was destroyed without return_tensors().
class Unit {
 public:
  struct Comms {
    Comm& gather;  // the ranks that shard one copy of the unit among themselves
    Comm& all;     // the ranks of all replicas
    // Gathers the parts of trained 16-bit parameters as 8-bit codes; null: `parts` gathers them as they are.
    CodedRefresh* codes = nullptr;
    Comm* parts = nullptr;  // the ranks that each update a part of this rank's shard; null: the shard is not divided
  };
  // Collective. All arguments passed by reference must outlive the unit. Writes the values of the source to the
  // parameters and master weights of `groups`. If the source has `values`, each rank reads the values that it keeps.
  // Otherwise every rank takes the values of rank 0.
  Unit(const UnitLayout& layout, std::span<ShardedGroup> groups, Placement placement, UnitSource source,
       at::Device device, Comms comms, SlotRing& ring, GatherStream& gathers);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  const UnitLayout& layout() const { return layout_; }
  Placement placement() const { return placement_; }

  // Starts the unit's gather if the unit is sharded and a slot is free. Returns false if the unit stays sharded because
  // no slot is free, and true otherwise. Unlike unshard(), does not call GatherStream::after_current_stream().
  bool prefetch();
  void unshard();
  void wait();
  void reshard();
  // Waits until every rank has read this rank's shards for the last gather that this rank has completed by wait(). If
  // this rank has started no later gather, it may then write to the shards.
  void await_readers();
  // Takes part in a gather that another rank needs, in whatever state this unit is. Does nothing for a kReplicated
  // unit. A unit that was sharded is sharded again afterwards. Any other unit is gathered again into the memory that it
  // has, and is unsharded afterwards.
  void take_part();
  bool is_sharded() const { return std::holds_alternative<Sharded>(state_); }
  // Returns whether a gather was started for which wait() was not called yet.
  bool is_unsharding() const { return std::holds_alternative<Unsharding>(state_); }
  bool is_unsharded() const { return std::holds_alternative<Unsharded>(state_); }

  std::span<ShardedGroup> groups() const { return groups_; }
  // Returns a 1-D view of all padded_numel() elements of a group, in the group's dtype. The unit must be unsharded.
  at::Tensor full(size_t group) const;
  // Returns whether `tensor` has the storage of one of the unit's parameters, as the parameter and its views do.
  // Returns false for a tensor to which a user has given another storage.
  bool owns(const at::Tensor& tensor) const;
  // Returns the tensors that refer to parameter `index`, in the order of UnitSource::params.
  const std::vector<at::Tensor>& tensors(size_t index) const { return params_.at(index).tensors(); }
  // begin_hold() and end_hold() bound the time in which users hold the unit gathered; see Note [Views that users keep].
  // They do nothing for a kReplicated unit, because views of its parameters always share its memory, as views of plain
  // tensors do.
  void begin_hold();
  // `leaves` is true if no forward or backward of the unit needs it any more. If `leaves` is true, the unit is
  // unsharded and users keep views of it, the views take over the unit's memory. A kSharded unit is then sharded. A
  // kPersistent unit copies its values to new memory. In all other cases the unit keeps its state and memory, and
  // reading a view that users keep throws from now on. This also happens, with a warning in the log, if there is no new
  // memory to replace the unit's memory.
  void end_hold(bool leaves);

  // After each write to the elements that this rank updates, start_refresh() and then finish_refresh() must be called.
  // Both are collective. If several ranks have each updated a part of the shard, these ranks first gather the parts. If
  // the unit is kReplicated, its ranks then gather each other's shards into the whole parameters. Otherwise the unit is
  // sharded from start_refresh() on, and its next gather reads the new values.
  void start_refresh();
  void finish_refresh();
  // Turns the parameters into ordinary tensors, which have their current values in memory of their own. A tensor to
  // which a user has given other memory keeps the values that it has there. But after share_memory_(), a tensor gets
  // the unit's values instead. Collective if the unit is sharded. After the call, the unit may only be destroyed.
  void return_tensors();
  // If the unit is kPersistent and unsharded, copies this rank's elements of the whole parameters to its shard, because
  // users may have written to the whole parameters. No rank may gather the unit during the call. Does nothing for other
  // units.
  void copy_whole_to_shard();
  // is_moved(), prepare_take_back() and point_back() call the function of UnitParam with that name for parameter
  // `index`.
  bool is_moved(size_t index) const { return params_.at(index).is_moved(); }
  bool prepare_take_back(size_t index) { return params_.at(index).prepare_take_back(); }
  void point_back(size_t index) { params_.at(index).point_back(); }
  // Calls UnitParam::take_back() for all parameters. The unit must be unsharded.
  void take_back(bool values);
  // Copies the whole parameters of rank `root` to those of all ranks, and from there to this rank's shard. Does not
  // change master weights. The unit must be unsharded. Collective over the ranks of all replicas.
  void broadcast_from(int root);

 private:
  struct Sharded {};
  struct Unsharding {
    std::vector<std::unique_ptr<Work>> works;
    char* memory;
  };
  struct Unsharded {
    char* memory;
  };

  void release_uses() noexcept;
  void load(UnitSource& source);
  void read(const UnitSource& source);
  void start_gather(char* memory);
  const void* shard_for_gather(size_t group, const Span& full);
  void attach(char* memory);
  // gather_parts() starts to gather the parts of this rank's shard. gather_shards() starts to gather the shards of a
  // kReplicated unit, and does nothing for another unit or for a single rank. Both gather only trained groups.
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
  // The stream of the last wait(), which has waited for the gather. A wait() on another stream waits for that stream.
  StreamUses ready_;
  // The memory of the gathered parameters. A kPersistent unit always has a slot, a kReplicated unit never.
  SlotRing::Slot* slot_ = nullptr;
  std::vector<UnitParam> params_;  // parallel to layout_.params
  std::vector<std::unique_ptr<Work>> refreshing_;
  std::vector<std::unique_ptr<Work>> gathered_;  // the last gather that this rank has waited for
  std::variant<Sharded, Unsharding, Unsharded> state_;
};

}  // namespace zeroshard
