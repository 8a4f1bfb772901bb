#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/mover.h"
#include "device/streams.h"
#include "group/parameter_checksum.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "store/array.h"

namespace zeroshard {

// One flat group of a unit on this rank. It owns the parameters that the rank keeps and, if the group is trained, its
// optimizer states. Gradients belong to the group's GradBucket, which has the same number().
//
// A position is an index into the elements of the flat group, including padding. Four ranges of positions matter:
//   shard()    what this rank gives to a gather
//   mine()     what this rank answers for where the ranks divide a group among themselves, as for saves: shard(), or a
//              part of shard() if several groups of ranks share one copy of the optimizer states
//   kept()     the parameters that this rank stores: shard(), or all positions if the unit is replicated
//   updated()  what this rank's optimizer updates: mine() from stage 1 on, all positions at stage 0, nothing if frozen
class ShardedGroup {
 public:
  struct Options {
    int rank = 0;                  // index among the ranks that shard one copy of the states
    size_t number = 0;             // index among the trained groups of the run; unused for a frozen group
    bool users_may_write = false;  // users may write to the parameters between steps
    std::vector<int> param_group;  // by parameter: index of its param group; -1: it is never updated
    Mover* to_host = nullptr;      // set if the host updates parameters of the device: copies them to the host and back
    Mover* to_device = nullptr;    // set if the device updates offloaded parameters: copies them to the device and back
    at::Device device = at::kCPU;  // device that computes; the parameters may be in host memory
  };

  // `parameters` has kept() elements in the group's dtype. `states` is null for a frozen group. `unit` must outlive the
  // group.
  ShardedGroup(const UnitLayout& unit, size_t index, const UnitPlacement& place, Options options,
               std::unique_ptr<Array> parameters, std::unique_ptr<Array> states);

  const UnitLayout& unit() const { return unit_; }
  const FlatGroup& flat() const { return unit_.groups[index_]; }
  const ShardLayout& layout() const { return flat().layout; }
  const GroupPlacement& place() const { return place_; }
  // Returns the specification of parameter `index` of the group.
  const ParamSpec& param(size_t index) const { return unit_.params[flat().params.at(index)]; }
  size_t num_params() const { return flat().params.size(); }
  int param_group(size_t index) const { return options_.param_group.at(index); }
  bool is_trained() const { return flat().requires_grad; }
  bool users_may_write() const { return options_.users_may_write; }
  size_t number() const { return options_.number; }

  Range shard() const { return layout().shard(options_.rank); }
  Range mine() const { return layout().part(options_.rank); }
  Range kept() const { return kept_; }
  Range updated() const { return updated_; }
  // Returns the range of parameter `index` in this rank's states, counted from updated().begin. The range is empty if
  // the rank updates no element of the parameter.
  Range state_range(size_t index) const;

  // These three functions return 1-D views of the parameters in this rank's memory, in the group's dtype. They call
  // await_copies() first. They must not be called if the parameters are in files.
  at::Tensor kept_parameters() const;
  at::Tensor my_shard() const;
  at::Tensor updated_parameters() const;
  // Calls await_copies(), and returns the parameters of `range`, which counts from updated().begin. Returns a copy if
  // the parameters are in files, and a view otherwise.
  at::Tensor updated_part(Range range) const;
  // Returns the same memory as updated_parameters(), but does not call await_copies().
  at::Tensor updated_memory() const { return memory(updated_); }
  // Returns the parameters that this rank keeps, in memory or files. Ranges of the array count from kept().begin.
  // Before a caller borrows parameters that are in memory, it must call await_copies().
  Array& parameters() const { return *parameters_; }
  // Returns whether the parameters are in the memory of the computing device.
  bool is_resident() const { return place_.parameters.tier == Tier::kDevice; }
  // Starts to copy this rank's shard from the host or a file to the device memory `to`, on `stream`, after pending
  // copies to the shard. If the shard is in a file, the host waits until it is read. The parameters must not be on the
  // device.
  void begin_copy_of_shard(void* to, const SideStream& stream);
  // Records that the last copy to the parameters ends when `event` completes.
  void written_until(c10::Event event) { writing_ = std::move(event); }
  // Waits for pending copies. If the parameters are on the device, the current stream waits for copies to them. If they
  // are on the host, the host waits for copies to and from them, so that it may read and write them.
  void await_copies() const;

  // Returns the optimizer states of a trained group. Ranges of the array count from updated().begin.
  Array& states() const { return *states_; }
  bool has_master() const { return place_.master_weights.extent != Extent::kNothing; }
  // Lends `range` of the states, which counts from updated().begin, together with their parameters. Calls `use(part,
  // states, params)` for consecutive parts, like Array::lend(). The tensors of a part are on the side (device or host)
  // that updates its elements. `ways` says whether `use` reads the parameters and whether it writes them. Parameters
  // that are on that side already are lent directly. Others are copied there if `use` reads them, and copied back if it
  // writes them. This function waits for the copies back only if the parameters are in files (see await_copies()). If
  // fp32 parameters are their own master weights where they are lent, `states` has no master weights. Elements that the
  // device updates are lent before elements that the host updates.
  using Access = Array::Access;
  using Ways = Mover::Ways;
  using Use = std::function<void(Range part, const StateTensors& states, const at::Tensor& params)>;
  void lend(Range range, Access access, Ways ways, const Use& use);
  // Lends `range` of the states for modification, together with the same elements of `params` in place of the group's
  // own parameters, which stay as they are. `params` is on the side of the states, and has the elements of updated().
  // If the parameters are fp32, `use` gets the master weights as its parameters, and they are copied to `params`
  // afterwards.
  void lend_beside(Range range, const at::Tensor& params, const Use& use);
  // Does the same as lend() for the master weights alone, which the group must have. The moments are not fetched. `use`
  // is not called for fp32 parameters that are their own master weights where they are lent, because there is nothing
  // to convert. The copies that `ways` asks for are still made. If the call may change master weights, forgets the
  // remembered parameters.
  using MasterUse = std::function<void(Range part, const at::Tensor& master, const at::Tensor& params)>;
  void lend_master(Range range, Access access, Ways ways, const MasterUse& use);
  // Returns whether the parameters have the bits that remember_parameters() saw, so that each master weight still
  // rounds to its parameter. Returns false if nothing is remembered. Otherwise the host waits for the device.
  bool is_untouched() const;
  // Returns whether the parameters have changed since they were remembered. Returns false if nothing is remembered.
  bool was_written() const;
  // Remembers the present parameters. Call it when the parameters are equal to the rounded master weights. Does nothing
  // unless users may write to the parameters, and the host updates some of them while they are on a device that has a
  // checksum kernel.
  void remember_parameters();
  // Forgets the remembered parameters. Call it before code that changes master weights without their parameters, or
  // that may fail after it has changed only one of the two. Otherwise parameters that keep the remembered bits, or get
  // them back, would look as if they still matched the changed master weights.
  void forget_parameters() const {
    if (checksum_) checksum_->forget();
  }
  // Returns the number of updates that each parameter has had.
  std::vector<int64_t>& update_counts() { return updates_; }
  const std::vector<int64_t>& update_counts() const { return updates_; }

  // Sets the master weights at `positions` to `values`, which is 1-D fp32. Skips positions that this rank does not
  // update. Does nothing without master weights.
  void write_master(Range positions, const at::Tensor& values);
  // Sets the parameters at `positions` to `values`. Skips positions that this rank does not keep. `values` may be on
  // any device, and has any floating-point dtype or that of the parameters. First waits for pending copies, and for a
  // save that reads the group.
  void write_parameters(Range positions, const at::Tensor& values);
  // copy_parameters_to_master() copies the parameters to the master weights. copy_master_to_parameters() copies the
  // master weights to the parameters. Both leave parameters that are their own master weights as they are.
  void copy_parameters_to_master();
  void copy_master_to_parameters();
  // Frees the states. Afterwards the group must not be trained.
  void free_states() { states_.reset(); }

 private:
  at::Tensor memory(Range positions) const;
  // The two parts of a range of the states, which counts from updated().begin. The host updates `first`, and the device
  // updates `rest`. If neither options_.to_host nor options_.to_device is set, `first` is the whole range, even if the
  // device updates it.
  struct Split {
    Range first, rest;
  };
  Split split(Range range) const;
  // A function that lends either all states of a range, or only its master weights.
  using LendStates = std::function<void(Range range, Access access, const Array::Borrower& use)>;
  void lend_updated(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use);
  // Lends elements whose states and parameters are on the device, which updates them in place.
  void lend_rest(Range rest, Access access, const LendStates& lend_states, const Use& use);
  // Lends parameters on the device to the host, which updates them.
  void lend_to_host(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use);
  // Lends offloaded parameters to the device, which updates them.
  void lend_to_device(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use);
  // Lends the parameters of `range`, which counts from updated().begin, on the side where they are stored. (Parameters
  // in files are lent on the host.)
  void lend_parameters(Range range, Ways ways, const Array::BorrowerOfOne& use);
  // Returns the access to the parameters that `ways` needs.
  Access access_to_parameters(Ways ways) const;
  // If `ways` writes the parameters, waits until no save reads them. It is called before states are lent, because a
  // save that needs the same files cannot go on while states are lent.
  void await_readers_of_parameters(Ways ways) const;

  const UnitLayout& unit_;
  size_t index_;
  GroupPlacement place_;
  Options options_;
  Range kept_, updated_;
  std::unique_ptr<Array> parameters_;
  mutable std::optional<c10::Event> writing_;  // end of the last copy to the parameters
  mutable std::optional<c10::Event> reading_;  // end of the last copy from the parameters, if they are on the host
  std::unique_ptr<Array> states_;
  mutable std::optional<ParameterChecksum> checksum_;  // set if remember_parameters() does anything
  std::vector<int64_t> updates_;
};

}  // namespace zeroshard
