#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/write_hold.h"
#include "store/storage.h"

namespace zeroshard {

// The master weights among an element's states, where the moments have the numbers of their slots.
inline constexpr int kMasterWeights = -1;

// Optimizer states of neighbouring elements: 1-D tensors, all of the same length. Master weights are fp32, and moments
// have the dtype of their placement.
struct StateTensors {
  at::Tensor master;                // undefined: the parameters are fp32, and their own master weights
  std::vector<at::Tensor> moments;  // by slot
  // By slot, of moments in 8-bit codes: one for each kScaledNumel elements.
  std::vector<at::Tensor> scales = {};

  // With scales, `begin` is a multiple of kScaledNumel.
  StateTensors slice(int64_t begin, int64_t end) const;
  const at::Tensor& at(int state) const { return state == kMasterWeights ? master : moments.at(size_t(state)); }
};

// Memory that outlives the storage, with the master weights as the first column, if there are any.
std::unique_ptr<Storage> states_in_memory(const StateTensors& states);

// Values of the elements of one group that a rank keeps: its optimizer states, its parameters or its gradients.
// Positions count these elements from 0. Code that needs values borrows a range and never asks where it lies. Only one
// thread at a time may use an array.
class Array {
 public:
  using Access = Storage::Access;
  // `part`: the elements that `tensors` hold. The tensors are valid during the call only.
  using Borrower = std::function<void(Range part, const StateTensors& tensors)>;
  using BorrowerOfOne = std::function<void(Range part, const at::Tensor& values)>;

  struct Options {
    bool has_master = false;  // the first column is the master weights
    // Of moments in 8-bit codes, by slot: memory that outlives the array, wherever the codes lie.
    std::vector<at::Tensor> scales = {};
    // Elements from `border` on lie in `rest`, which counts them from there.
    int64_t border = std::numeric_limits<int64_t>::max();
    std::unique_ptr<Storage> rest = nullptr;
    // Where a thread may read the array beside the others: called while who writes waits for that thread.
    std::optional<WriteHold::WhileWaiting> while_a_save_reads = std::nullopt;
  };
  explicit Array(std::unique_ptr<Storage> storage) : Array(std::move(storage), Options()) {}
  Array(std::unique_ptr<Storage> storage, Options options);
  // One column of values in memory that outlives the array. The array orders no streams: its borrowers do.
  explicit Array(at::Tensor values);
  // States in memory that outlives the array.
  explicit Array(StateTensors states);

  // Calls `use` for consecutive parts that make up `range`: see Storage::lend(). While a save reads, it waits except
  // with kRead.
  void lend(Range range, Access access, const Borrower& use);
  // The same for one state alone, the moment of a slot or kMasterWeights: others are not fetched.
  void lend_one(Range range, int state, Access access, const BorrowerOfOne& use);
  // Writes values to a moment, however it is stored. Codes: the range has whole blocks of kScaledNumel elements, except
  // at the end of a parameter.
  void write_moment(Range range, int slot, const at::Tensor& values);
  // Values of a moment, of which `values` were lent for `part`, as fp32 at `to` on the host.
  void read_moment(Range part, int slot, const at::Tensor& values, void* to) const;
  // Whether moments are 8-bit codes.
  bool has_codes() const { return !scales_.empty(); }
  // The same for an array of one column.
  void lend(Range range, Access access, const BorrowerOfOne& use) { lend_one(range, 0, access, use); }
  void will_need(Range range);
  // Where the range lies in swap files, for SwapSpace::will_need_next(). Empty if it is in memory.
  std::optional<ChunkStore::Announced> place_in_files(Range range) const;
  // All elements, if they are in one piece of memory for the whole run, else null. For code that needs an address.
  const StateTensors* in_memory() const { return in_memory_ ? &*in_memory_ : nullptr; }
  // Where a thread may read the array beside this one: as long as this is held, who borrows it to write waits. Null
  // where values must be copied first.
  WriteHold* hold() const { return hold_.get(); }
  // For that thread. The array outlives it.
  std::unique_ptr<ArrayReader> reader(int state);
  // Copies of a device read what was lent last, until `event`: who borrows it to write waits for that.
  void read_until(c10::Event event) { storage_->read_until(std::move(event)); }

  // Of an array of one column.
  int64_t numel() const { return storage_->numel(); }
  at::ScalarType type() const { return storage_->type(0); }
  // Copies `range` to `to`, memory of the host.
  void read(Range range, void* to);
  // Copies `range` to `to`, memory of `device`, by `stream`: for files alone the host waits here, and who writes
  // to these later waits for the copy. On the CPU it is done when this returns.
  void begin_read(Range range, void* to, at::Device device, const SideStream& stream);
  at::Tensor copy_of(Range range);
  // The values themselves if they are in memory for the whole run, else a copy.
  at::Tensor part(Range range);
  // The values themselves, which must be in memory for the whole run.
  at::Tensor view(Range range) const;

 private:
  int column_of(int state) const { return has_master_ ? state + 1 : state; }
  // `part`: the elements that the columns hold.
  StateTensors tensors_of(Range part, std::span<const at::Tensor> columns) const;
  void lend_columns(Range range, std::optional<int> column, Access access, const Storage::Use& use);

  std::unique_ptr<Storage> storage_, rest_;
  int64_t border_;
  bool has_master_;
  std::vector<at::Tensor> scales_;
  std::optional<StateTensors> in_memory_;
  std::unique_ptr<WriteHold> hold_;
};

}  // namespace zeroshard
