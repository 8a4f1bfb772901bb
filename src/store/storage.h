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

// Reads one column on a thread of its own, while another thread lends and nobody writes to the column.
class ArrayReader {
 public:
  virtual ~ArrayReader() = default;
  // Optimizer states are read as fp32, and packed values and codes as they are.
  virtual void read(Range range, void* to) = 0;
};

// Where values of neighbouring elements lie: in memory or in files. The values are in columns, such as master weights
// and the moments of each slot, and positions count the elements from 0. Only one thread at a time may use a storage.
class Storage {
 public:
  // kOverwrite: the borrower writes every element, and what was there before is not fetched.
  using Access = ChunkStore::Access;
  // `columns` hold the elements in `part`, as 1-D tensors that are valid during the call only.
  using Use = std::function<void(Range part, std::span<const at::Tensor> columns)>;

  virtual ~Storage() = default;
  // Calls `use` for consecutive parts that make up `range`, with all columns or with `column` alone. The storage
  // chooses the number of parts. Except with kRead it keeps what `use` has written. An exception of `use` passes
  // through; then the writes to that part may be lost or kept, and with kOverwrite its values are undefined.
  virtual void lend(Range range, std::optional<int> column, Access access, const Use& use) = 0;
  virtual std::unique_ptr<ArrayReader> reader(int column) = 0;
  virtual int64_t numel() const = 0;
  virtual at::ScalarType type(int column) const = 0;
  // lend() will be called for `range`, after what was announced before for any storage of the run. It is a hint: values
  // that have to be fetched are fetched ahead.
  virtual void will_need(Range) {}
  // Where the range lies in swap files, for SwapSpace::will_need_next().
  virtual std::optional<ChunkStore::Announced> place_in_files(Range) const { return std::nullopt; }
  // The columns, if they are in memory for the whole run, else null.
  virtual const std::vector<at::Tensor>* in_memory() const { return nullptr; }
  // Copies of a device read what was lent last, until `event`: who borrows it to write waits for that.
  virtual void read_until(c10::Event event) { event.synchronize(); }
  // Called by `use`: copies that `stream` has been given read what is lent now. A storage whose memory others use later
  // waits for these copies before it gives that memory away.
  virtual void read_on(const SideStream& stream) = 0;
};

// Memory of a device or of the host. What a borrower's stream writes comes after what the streams of others have read,
// such as those of copies for a checkpoint; on the host, who borrows it to write waits for copies of a device.
class MemoryStorage final : public Storage {
 public:
  // `owned`, if anything, is the memory of the columns; else that outlives the storage.
  explicit MemoryStorage(std::vector<at::Tensor> columns, std::vector<FlatBuffer> owned = {});
  // One column whose borrowers wait for one another without the storage.
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
  std::optional<c10::Event> reading_;  // of the last copies from memory of the host
};

// Group number `group` of those that swap files were made for. On loan it is in memory of the host.
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
    // There is one column, of any dtype, and each fp32 value of the files holds as many of its elements as fit.
    bool packed = false;
  };

  // All elements are zero. `space` and `ledger`, which counts the bytes in files, outlive the storage.
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
  // The fp32 values of the files that have the bytes of `range`: those at its ends may have others, too.
  Range values_of(Range range) const;
  bool is_whole(Range range, Range values) const;

  SwapSpace& space_;
  Options options_;
  Ledger& ledger_;
};

// The optimizer states that `place` has of a group on the host, in memory of exactly that size, or in files. With
// `pin`, `device` copies to and from the host's memory by itself.
std::unique_ptr<Storage> states_on_host(const ShardLayout& layout, const GroupPlacement& place, at::Device device,
                                        bool pin, Ledger& ledger);
std::unique_ptr<Storage> states_in_files(SwapSpace& space, size_t group, const ShardLayout& layout,
                                         const GroupPlacement& place, Ledger& ledger);
// One column of parameters or gradients, packed.
std::unique_ptr<Storage> values_in_files(SwapSpace& space, size_t group, const Held& held, const ShardLayout& layout,
                                         Category category, Ledger& ledger);

}  // namespace zeroshard
