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

// Reads one column of a storage in a second thread. Meanwhile the first thread may lend values, but nobody may write to
// the column.
class ArrayReader {
 public:
  virtual ~ArrayReader() = default;
  // Copies `range` to `to`. Optimizer states are converted to fp32. Packed values and codes are copied unchanged.
  virtual void read(Range range, void* to) = 0;
};

// The memory or files that hold the values of neighbouring elements. The values form columns, such as the master
// weights and the moments of each slot. Positions count the elements from 0. Only one thread at a time may use a
// storage.
class Storage {
 public:
  // kOverwrite: the borrower writes every element, so the old values are not fetched.
  using Access = ChunkStore::Access;
  // `columns` hold the elements in `part`. They are 1-D tensors that are valid only during the call.
  using Use = std::function<void(Range part, std::span<const at::Tensor> columns)>;

  virtual ~Storage() = default;
  // Calls `use` for consecutive parts that make up `range`, with all columns or only with `column`. The storage chooses
  // the number of parts. It keeps the values that `use` has written, unless access is kRead. If `use` throws, the
  // exception passes through. The writes to that part may then be lost or kept, and with kOverwrite its values are
  // undefined.
  virtual void lend(Range range, std::optional<int> column, Access access, const Use& use) = 0;
  virtual std::unique_ptr<ArrayReader> reader(int column) = 0;
  virtual int64_t numel() const = 0;
  virtual at::ScalarType type(int column) const = 0;
  // Hints that lend() will be called for `range`, after the ranges announced earlier for any storage of the run. A
  // storage that has to fetch values can then prefetch them.
  virtual void will_need(Range) {}
  // Returns the place of the range in swap files, for SwapSpace::will_need_next().
  virtual std::optional<ChunkStore::Announced> place_in_files(Range) const { return std::nullopt; }
  // Returns the columns if they are in memory for the whole run, otherwise null.
  virtual const std::vector<at::Tensor>* in_memory() const { return nullptr; }
  // Tells the storage that copies of a device read the last loan until `event`. A borrower that wants to write waits
  // for the event.
  virtual void read_until(c10::Event event) { event.synchronize(); }
  // Tells the storage that copies on `stream` read the current loan; `use` calls it. If the storage reuses the memory
  // of the loan, it waits for these copies first.
  virtual void read_on(const SideStream& stream) = 0;
};

// Memory of a device or of the host. Writes on a borrower's stream come after the reads on other streams, such as
// copies for a checkpoint. On the host, a borrower that wants to write waits for the device's copies.
class MemoryStorage final : public Storage {
 public:
  // `owned` is the memory of the columns. If `owned` is empty, the caller's memory outlives the storage.
  explicit MemoryStorage(std::vector<at::Tensor> columns, std::vector<FlatBuffer> owned = {});
  // Makes a storage of one column. Borrowers of the column order their accesses themselves.
  explicit MemoryStorage(at::Tensor values) : columns_{std::move(values)} {}
  void lend(Range range, std::optional<int> column, Access access, const Use& use) override;
  std::unique_ptr<ArrayReader> reader(int column) override;
  int64_t numel() const override { return columns_.at(0).numel(); }
  at::ScalarType type(int column) const override { return columns_.at(size_t(column)).scalar_type(); }
  const std::vector<at::Tensor>* in_memory() const override { return &columns_; }
  void read_until(c10::Event event) override { reading_ = std::move(event); }
  void read_on(const SideStream&) override {}  // the borrower keeps the event, and calls read_until()

 private:
  std::vector<FlatBuffer> owned_;
  std::vector<at::Tensor> columns_;
  StreamUses uses_;
  std::optional<c10::Event> reading_;  // recorded after the last copies from host memory
};

// The part of the swap files that belongs to one group. Values on loan are in host memory.
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
    // If set, there is one column, of any dtype. Each fp32 value of the files then holds as many elements as fit.
    bool packed = false;
  };

  // All elements begin as zero. `ledger` counts the bytes in files. `space` and `ledger` outlive the storage.
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
  // Returns the fp32 values of the files that hold the bytes of `range`. The first and the last value may hold other
  // bytes, too.
  Range values_of(Range range) const;
  bool is_whole(Range range, Range values) const;

  SwapSpace& space_;
  Options options_;
  Ledger& ledger_;
};

// These functions make the storage of a group's optimizer states, which `place` puts on the host or into files. On the
// host, the memory has exactly the size of the states. With `pin` it is pinned, so that `device` copies it without the
// host.
std::unique_ptr<Storage> states_on_host(const ShardLayout& layout, const GroupPlacement& place, at::Device device,
                                        bool pin, Ledger& ledger);
std::unique_ptr<Storage> states_in_files(SwapSpace& space, size_t group, const ShardLayout& layout,
                                         const GroupPlacement& place, Ledger& ledger);
// Makes a storage with one packed column of parameters or gradients.
std::unique_ptr<Storage> values_in_files(SwapSpace& space, size_t group, const Held& held, const ShardLayout& layout,
                                         Category category, Ledger& ledger);

}  // namespace zeroshard
