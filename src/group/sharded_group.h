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

// One flat group of a unit, as this rank holds it: its layout and placement, the parameters that the rank keeps and, if
// the group is trained, its optimizer states. Gradients belong to the group's GradBucket, which has the same number().
//
// Positions are in the flat group, padding included. Three ranges of positions matter:
//   mine()     this rank's shard
//   kept()     the parameters in this rank's memory: mine(), or all where the unit is replicated
//   updated()  what this rank's optimizer updates: mine() from stage 1 on, all at stage 0
class ShardedGroup {
 public:
  struct Options {
    int rank = 0;
    size_t number = 0;             // among the trained groups of the run; unused for a frozen group
    bool is_open = false;          // users may write to the parameters between steps
    std::vector<int> param_group;  // of each parameter; -1: it is never updated
    Mover* to_host = nullptr;      // where the host updates the parameters of a device: it brings them there and back
    Mover* to_device = nullptr;  // where the device updates parameters that have left it, or a part of them: its slots
    at::Device device = at::kCPU;  // that computes; the parameters may lie on the host beside it
  };

  // `parameters`: kept() elements in the group's dtype. `states` is null for a frozen group. `unit` outlives it.
  ShardedGroup(const UnitLayout& unit, size_t index, const UnitPlacement& place, Options options,
               std::unique_ptr<Array> parameters, std::unique_ptr<Array> states);

  const UnitLayout& unit() const { return unit_; }
  const FlatGroup& flat() const { return unit_.groups[index_]; }
  const ShardLayout& layout() const { return flat().layout; }
  const GroupPlacement& place() const { return place_; }
  // Parameter `index` of the group.
  const ParamSpec& param(size_t index) const { return unit_.params[flat().params.at(index)]; }
  size_t num_params() const { return flat().params.size(); }
  int param_group(size_t index) const { return options_.param_group.at(index); }
  bool is_trained() const { return flat().requires_grad; }
  bool is_open() const { return options_.is_open; }
  size_t number() const { return options_.number; }

  Range mine() const { return layout().shard(options_.rank); }
  Range kept() const { return kept_; }
  Range updated() const { return updated_; }
  // The range of parameter `index` in this rank's states; empty if the rank updates no element of it.
  Range state_range(size_t index) const;

  // 1-D views of the parameters in this rank's memory, in the group's dtype. Whoever asks waits for the copies that are
  // under way, as await_copies() does. Not of a group whose parameters lie in files.
  const at::Tensor& kept_parameters() const;
  at::Tensor my_shard() const;
  at::Tensor updated_parameters() const;
  // Returns the parameters of the elements in `range`, counted as the states are; a copy if they lie in files.
  at::Tensor updated_part(Range range) const;
  // Without waiting.
  at::Tensor updated_memory() const { return memory(updated_); }
  // Whether the states lie on the host, or in a file, beside a device that has the parameters.
  bool has_states_on_host() const { return options_.to_host != nullptr; }
  // The parameters that this rank keeps, wherever they lie. Positions count from kept().begin. Whoever borrows those in
  // memory waits for copies before, as await_copies() does.
  Array& parameters() const { return *parameters_; }
  // Whether they lie in memory of the device that computes.
  bool is_resident() const { return place_.parameters.tier == Tier::kDevice; }
  // Gives `stream` a copy of this rank's shard, which lies on the host or in a file, to `to`, memory of the device.
  void begin_copy_of_shard(void* to, const SideStream& stream);
  // Copies to the parameters have ended after `event`.
  void written_until(c10::Event event) { writing_ = std::move(event); }
  // Parameters on the device: what the current stream is given from now on comes after copies to them. On the host: the
  // host waits for copies to and from them, so that it may read and write.
  void await_copies() const;

  // For a trained group. Positions in the states count from updated().begin.
  Array& states() const { return *states_; }
  bool has_master() const { return place_.master_weights.extent != Extent::kNothing; }
  // Lends `range` of the states together with their parameters, where these elements are updated: calls
  // `use(part, states, params)` as Array::lend() does. `ways` says whether the parameters are read and
  // written. Parameters that lie there are lent themselves. Others are copied, and nobody waits for the copies here
  // (await_copies()). fp32 parameters on the host are then the master weights, and `states` has no others. Elements
  // that the device updates beside the host are lent first.
  using Access = Array::Access;
  using Ways = Mover::Ways;
  using Use = std::function<void(Range part, const StateTensors& states, const at::Tensor& params)>;
  void lend(Range range, Access access, Ways ways, const Use& use);
  // The same for the master weights alone: other states are not fetched.
  using MasterUse = std::function<void(Range part, const at::Tensor& master, const at::Tensor& params)>;
  void lend_master(Range range, Access access, Ways ways, const MasterUse& use);
  // Parameters of a device that the host updates: whether they have the bits that they had when they were remembered,
  // so that each master weight rounds to its parameter. The host waits for the device. False where that is not known.
  bool is_untouched() const;
  // The same of parameters that somebody has written to since they were remembered. False where that is not known.
  bool was_written() const;
  // All that this rank updates has been published.
  void remember_parameters();
  // Whoever changes master weights without their parameters, or may fail between the two, calls this before: they may
  // get their old bits back.
  void forget_parameters() const {
    if (checksum_) checksum_->forget();
  }
  // How many updates each parameter has had.
  std::vector<int64_t>& updates() { return updates_; }
  const std::vector<int64_t>& updates() const { return updates_; }

  // Initial values at full precision: `values` is 1-D fp32 over `positions`. Copies those that this rank updates to the
  // master weights.
  void write_master(Range positions, const at::Tensor& values);
  // The same for the parameters that this rank keeps: `values` of any floating-point dtype, or of their own, anywhere.
  void write_parameters(Range positions, const at::Tensor& values);
  // Copies the parameters to the master weights, or the other way round. Does nothing without master weights.
  void take_parameters();
  void publish_master();
  // Frees the states: from then on the group is not trained.
  void free_states() { states_.reset(); }

 private:
  at::Tensor memory(Range positions) const;
  // Of a range of the states: `rest` is what a device updates though the parameters have left it, or beside the host.
  struct Split {
    Range first, rest;
  };
  Split split(Range range) const;
  // Lends all states of a range, or one of them.
  using LendStates = std::function<void(Range range, Access access, const Array::Borrower& use)>;
  void lend_updated(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use);
  // The device updates these parameters itself, where they lie.
  void lend_rest(Range rest, Access access, const LendStates& lend_states, const Use& use);
  // The host updates these parameters of the device.
  void lend_to_host(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use);
  // The device updates these parameters, which have left it.
  void lend_to_device(Range range, Access access, Ways ways, const LendStates& lend_states, const Use& use);
  // Lends the parameters of a range of the states.
  void lend_parameters(Range range, Ways ways, const Array::BorrowerOfOne& use);
  // What such a loan is for: `ways` says whether they are read and written.
  Access access_to_parameters(Ways ways) const;
  // Before their states are lent: who waits with these would keep a save from what it still reads of them.
  void await_readers_of_parameters(Ways ways) const;

  const UnitLayout& unit_;
  size_t index_;
  GroupPlacement place_;
  Options options_;
  Range kept_, updated_;
  std::unique_ptr<Array> parameters_;
  mutable std::optional<c10::Event> writing_;  // the last copy to the parameters
  mutable std::optional<c10::Event> reading_;  // the last copy from them, on the host
  std::unique_ptr<Array> states_;
  mutable std::optional<ParameterChecksum> checksum_;  // of an open group whose parameters the host updates
  std::vector<int64_t> updates_;
};

}  // namespace zeroshard
