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

// The master weights' index among the states of an element. The moments have the indices 0, 1, and so on, which are
// called slots.
inline constexpr int kMasterWeights = -1;

// The optimizer states of neighbouring elements, as 1-D tensors. Master weights are fp32. Moments have the dtype that
// their placement says. An array of parameters or gradients has no states, so its values are the only tensor in
// `moments`.
struct StateTensors {
  at::Tensor master;                // undefined if the parameters are fp32 and serve as their own master weights
  std::vector<at::Tensor> moments;  // for each slot
  // For each slot of 8-bit codes: its scales, one for each kScaledNumel elements. Empty if moments are not codes.
  std::vector<at::Tensor> scales = {};

  // Returns the states of the elements `range`. If there are scales, it must begin at a multiple of kScaledNumel.
  StateTensors slice(Range range) const;
  const at::Tensor& at(int state) const { return state == kMasterWeights ? master : moments.at(size_t(state)); }
};

// Makes a storage whose columns are the master weights, if there are any, and then the moments. Their memory must
// outlive the storage. The storage does not have the scales.
std::unique_ptr<Storage> states_in_memory(const StateTensors& states);

// The optimizer states, the parameters or the gradients of those elements of one group that a rank has. Code that needs
// values borrows a range, and need not know whether the range is on the device, on the host or in files. Positions
// count the rank's elements from 0. Only one thread at a time may use an array, except through reader().
class Array {
 public:
  using Access = Storage::Access;
  // `tensors` have the values of the elements `part`. They are valid only during the call.
  using Borrower = std::function<void(Range part, const StateTensors& tensors)>;
  using BorrowerOfOne = std::function<void(Range part, const at::Tensor& values)>;

  struct Options {
    bool has_master = false;  // whether the first column has the master weights
    // For each slot of 8-bit codes: its scales. The memory of the scales must outlive the array. Scales are in memory
    // even if their codes are in files.
    std::vector<at::Tensor> scales = {};
    // Elements before `border` are in the array's storage. Elements from `border` on are in `rest`, which counts them
    // from 0.
    int64_t border = std::numeric_limits<int64_t>::max();
    std::unique_ptr<Storage> rest = nullptr;
    // Set if another thread may read the array, such as the thread of a save. A loan with kModify or kOverwrite waits
    // until that thread has finished reading. During the wait, the waiting thread calls this function from time to
    // time.
    std::optional<WriteHold::WhileWaiting> while_a_save_reads = std::nullopt;
  };
  explicit Array(std::unique_ptr<Storage> storage) : Array(std::move(storage), Options()) {}
  Array(std::unique_ptr<Storage> storage, Options options);
  // Makes an array of one column. The memory of `values` must outlive the array. The array does not order streams, so
  // its borrowers must do that.
  explicit Array(at::Tensor values);
  // Makes an array of states. The memory of `states` must outlive the array.
  explicit Array(StateTensors states);

  // Calls `use` for consecutive parts that make up `range`, like Storage::lend(). If access is not kRead, first waits
  // until nobody reads under hold().
  void lend(Range range, Access access, const Borrower& use);
  // Lends one state: the moment of a slot, or kMasterWeights. The other states are not fetched.
  void lend_one(Range range, int state, Access access, const BorrowerOfOne& use);
  // Writes `values`, of any dtype, to a moment. If the moment is stored as codes, the range must begin at a multiple of
  // kScaledNumel, and end at another one or at the end of a parameter.
  void write_moment(Range range, int slot, const at::Tensor& values);
  // Converts `values` of a moment, which were lent for `part`, to fp32. Writes them to `to`, which must be host memory.
  void read_moment(Range part, int slot, const at::Tensor& values, void* to) const;
  // Returns whether moments are 8-bit codes.
  bool has_codes() const { return !scales_.empty(); }
  // Lends the values of an array that has one column.
  void lend(Range range, Access access, const BorrowerOfOne& use) { lend_one(range, 0, access, use); }
  void will_need(Range range);
  // Returns the place of the range in swap files, for SwapSpace::will_need_next(). Returns nothing if the range is in
  // memory. The array must have no `rest`.
  std::optional<ChunkStore::Announced> place_in_files(Range range) const;
  // Returns the states of all elements if they are in memory for the whole run and no `rest` has some of them.
  // Otherwise returns null. Only code that needs an address should call it.
  const StateTensors* in_memory() const { return in_memory_ ? &*in_memory_ : nullptr; }
  // Returns the hold under which another thread may read the array. While that thread has the hold, a borrower that
  // wants to write waits. Returns null if the array allows no other reader. In this case values must be copied before
  // another thread uses them.
  WriteHold* hold() const { return hold_.get(); }
  // Returns a reader of one state, for another thread. Codes are decoded to fp32. The array must outlive the reader.
  std::unique_ptr<ArrayReader> reader(int state);
  // Says that a device copies from the memory of the most recent loan until `event`. If the values are in memory, a
  // borrower that wants to write waits for the event. Otherwise the function itself waits. The loan must have been of
  // elements before Options::border.
  void read_until(c10::Event event) { storage_->read_until(std::move(event)); }

  // Returns the number of elements of an array that has one column.
  int64_t numel() const { return storage_->numel(); }
  at::ScalarType type() const { return storage_->type(0); }
  // Copies `range` of an array that has one column to `to`. `to` must be host memory, and the values must be on the
  // host or in files.
  void read(Range range, void* to);
  // Starts to copy `range` to `to`, which is memory of `device`, on `stream`. The values must be as read() needs them,
  // and the array must have no `rest`. If `device` is the CPU, does the same as read(). Otherwise, if the values are in
  // memory, the caller must make later writers wait for the copy, for example by read_until(). If the values are in
  // files, the function returns after they were read from the files, and later writers wait for the copy by themselves.
  void begin_read(Range range, void* to, at::Device device, const SideStream& stream);
  // Returns a copy in host memory. See read().
  at::Tensor copy_of(Range range);
  // Returns the values themselves if they are in memory for the whole run. Otherwise returns a copy.
  at::Tensor part(Range range);
  // Returns the values themselves, which must be in memory for the whole run.
  at::Tensor view(Range range) const;

 private:
  int column_of(int state) const { return has_master_ ? state + 1 : state; }
  // Returns `columns`, which have the values of the elements `part`, as states.
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
