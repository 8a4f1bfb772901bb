#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/dtype.h"
#include "device/flat_buffer.h"
#include "device/streams.h"
#include "layout/shard_layout.h"
#include "placement/placement.h"
#include "store/swap_space.h"

namespace zeroshard {

// Reads one column of a storage in a second thread. While it reads, the first thread may lend values, but nobody may
// write to the column.
class ArrayReader {
 public:
  virtual ~ArrayReader() = default;
  // Copies `range` to `to`, which is host memory. Converts bf16 moments to fp32. Packed values (see FileStorage) are
  // copied as they are. A reader of a storage also copies codes as they are, but a reader of an Array decodes them.
  virtual void read(Range range, void* to) = 0;
};

// The memory or the files that hold the values of a range of neighbouring elements. Each element has one value in each
// column. For example, the master weights are a column, and so is each moment. Positions count the elements from 0.
// Only one thread at a time may use a storage.
class Storage {
 public:
  // With kOverwrite, the borrower must write every element, and the old values are not fetched.
  using Access = ChunkStore::Access;
  // `columns` are 1-D tensors of the elements in `part`. They are valid only during the call.
  using Use = std::function<void(Range part, std::span<const at::Tensor> columns)>;

  virtual ~Storage() = default;
  // Calls `use` for consecutive parts that make up `range`, with all columns or only with `column`. The storage chooses
  // the number of parts. If access is not kRead, the storage keeps the values that `use` has written. If `use` throws,
  // lend() throws the same exception. In the part for which `use` threw, values that `use` has written with kModify can
  // be kept or lost. With kOverwrite, all values of this part are undefined.
  virtual void lend(Range range, std::optional<int> column, Access access, const Use& use) = 0;
  virtual std::unique_ptr<ArrayReader> reader(int column) = 0;
  virtual int64_t numel() const = 0;
  virtual at::ScalarType type(int column) const = 0;
  // Announces that lend() will be called for `range`, after the ranges that were announced earlier for any storage of
  // the same SwapSpace. A storage that has to fetch values can then prefetch them.
  virtual void will_need(Range) {}
  // Returns the place of the range in swap files, for SwapSpace::will_need_next(). Returns nothing if the storage is
  // memory.
  virtual std::optional<ChunkStore::Announced> place_in_files(Range) const { return std::nullopt; }
  // Returns the columns if they are in memory for the whole run. Otherwise returns null.
  virtual const std::vector<at::Tensor>* in_memory() const { return nullptr; }
  // Says that a device copies from the memory of the most recent loan until `event`. Either a later borrower that wants
  // to write waits for the event, or the function itself waits. The default waits itself.
  virtual void read_until(c10::Event event) { event.synchronize(); }
  // Says that copies on `stream` read the current loan. Only `use` may call it. Before the storage reuses the memory of
  // the loan, it waits for these copies.
  virtual void read_on(const SideStream& stream) = 0;
};

// Memory of a device or of the host. Writes on a borrower's stream come after the reads on other streams, such as
// copies for a checkpoint. Before lend() lends memory to write, it waits for the event of read_until().
class MemoryStorage final : public Storage {
 public:
  // `owned` is the memory of the columns. If `owned` is empty, the caller must keep the memory as long as the storage
  // lives.
  explicit MemoryStorage(std::vector<at::Tensor> columns, std::vector<FlatBuffer> owned = {});
  // Makes a storage of one column, which orders no streams, so borrowers must do that.
  explicit MemoryStorage(at::Tensor values) : columns_{std::move(values)} {}
  void lend(Range range, std::optional<int> column, Access access, const Use& use) override;
  std::unique_ptr<ArrayReader> reader(int column) override;
  int64_t numel() const override { return columns_.at(0).numel(); }
  at::ScalarType type(int column) const override { return columns_.at(size_t(column)).scalar_type(); }
  const std::vector<at::Tensor>* in_memory() const override { return &columns_; }
  void read_until(c10::Event event) override { reading_ = std::move(event); }
  void read_on(const SideStream&) override {}  // the borrower makes later writers wait, for example by read_until()

 private:
  std::vector<FlatBuffer> owned_;
  std::vector<at::Tensor> columns_;
  StreamUses uses_;
  std::optional<c10::Event> reading_;  // event of the last read_until(), until a borrower has waited for it
};

// One group's part of the swap files. Values that are lent are in host memory.
class FileStorage final : public Storage {
 public:
  struct Column {
    DType dtype;
    Category category;
  };
  struct Options {
    size_t group = 0;
    int64_t numel = 0;
    std::vector<Column> columns = {};
    // If false, positions in the files count elements. If true, there is one column, of any dtype, whose elements lie
    // one after another in the files. Positions then count fp32 values, so two bf16 elements, for example, share one
    // position.
    bool packed = false;
  };

  // All elements are zero at first. `ledger` counts the bytes in files. `space` and `ledger` must outlive the storage.
  FileStorage(SwapSpace& space, Options options, Ledger& ledger);
  ~FileStorage() override;
  FileStorage(const FileStorage&) = delete;
  FileStorage& operator=(const FileStorage&) = delete;

  void lend(Range range, std::optional<int> column, Access access, const Use& use) override;
  std::unique_ptr<ArrayReader> reader(int column) override;
  int64_t numel() const override { return options_.numel; }
  at::ScalarType type(int column) const override { return to_scalar_type(options_.columns.at(size_t(column)).dtype); }
  void will_need(Range range) override { space_.will_need(options_.group, values_of(range)); }
  std::optional<ChunkStore::Announced> place_in_files(Range range) const override;
  void read_on(const SideStream& stream) override;

 private:
  int64_t element_bytes() const { return element_size(options_.columns.front().dtype); }
  // Returns the positions in the files that hold the elements `range`. If the column is not packed, these are `range`
  // itself. In a packed column, the fp32 value at the first and at the last position can also hold bytes of other
  // elements or of the padding.
  Range values_of(Range range) const;
  bool is_whole(Range range, Range values) const;

  SwapSpace& space_;
  Options options_;
  Ledger& ledger_;
};

// states_on_host() and states_in_files() make the storage of the optimizer states of a group's first `numel` elements,
// which `place` puts on the host, or in files. On the host, the memory has exactly the size of the states. If `pin` is
// true, the memory is pinned, so that `device` can copy to and from it directly.
std::unique_ptr<Storage> states_on_host(int64_t numel, const GroupPlacement& place, at::Device device, bool pin,
                                        Ledger& ledger);
std::unique_ptr<Storage> states_in_files(SwapSpace& space, size_t group, int64_t numel, const GroupPlacement& place,
                                         Ledger& ledger);
// Makes a storage that has one packed column of parameters or gradients.
std::unique_ptr<Storage> values_in_files(SwapSpace& space, size_t group, const Stored& values,
                                         const ShardLayout& layout, Category category, Ledger& ledger);

}  // namespace zeroshard
