#pragma once
#include <algorithm>
#include <bitset>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "file/chunk_layout.h"
#include "file/direct_buffer.h"
#include "file/swap_file.h"
#include "file/transfer_queue.h"

namespace zeroshard {

// Keeps the values of groups of elements in swap files, and lends ranges of these values in memory.
//
// Note [Chunks on their way]
// A few buffers hold one chunk each. When blocks of a chunk are lent, those that are not in a buffer yet are read
// first, unless they will be overwritten as a whole. Announced chunks are read ahead. Blocks that nobody borrows or
// announces are not read. Values that a borrower has written stay in the buffer until another chunk is lent or flush()
// is called. Then they are written to the file in the background, while the next chunks are lent. Until that write is
// done, the buffer is neither lent to write nor filled with another chunk. So reads of later chunks, use of the current
// chunk and writes of earlier chunks overlap, except if there is a single buffer. Each buffer knows for each block
// whether the block has been read and whether it has changed.
//
// Only one thread at a time may use the store, except for read_file(). Functions throw IoError with the path, also for
// errors of earlier background writes. After an error the store has failed, because the contents of the files are
// unknown then. Each later lend(), will_need(), will_need_next(), flush() and copy_buffered() throws IoError with the
// same message.
class ChunkStore {
 public:
  struct Options {
    std::vector<std::string> directories;  // each has one swap file; chunks are striped over the files
    int buffer_count = 4;
    int64_t chunk_numel = kChunkNumel;
    int64_t block_bytes = int64_t{1} << 20;  // the most bytes of one request
    int queue_depth = 32;                    // the most requests that run at a time
    int thread_count = 4;                    // threads that read and write if io_uring is refused
    bool verify = true;                      // whether values that are read are compared with their checksums
    RingSystem* ring = nullptr;              // null: threads read and write
    // Allocates the memory of a buffer, aligned for O_DIRECT. Null means allocate_direct().
    std::function<std::shared_ptr<std::byte>(int64_t bytes)> allocate = {};
  };
  // With kOverwrite, the lent values are undefined at first, because a block that is lent as a whole is not read. So
  // `use` must write all of them.
  enum class Access : uint8_t { kRead, kModify, kOverwrite };
  // `part` has elements of one chunk. `values` has one address for each slot, which is that of the value of part's
  // first element. If only one slot is lent, `values` has only the address for this slot. Addresses of narrow values
  // are passed as float*, too. All addresses are valid only during the call, or until a Reader that was passed to
  // read_on() is done.
  using Use = std::function<void(Range part, std::span<float* const> values)>;
  // Something that still reads lent values after lend() has returned, such as a copy to a device.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual bool is_done() = 0;
    virtual void await() = 0;
  };
  // Returns the queue that the store uses instead of the passed one, for tests.
  using Wrap = std::function<std::unique_ptr<BlockQueue>(std::unique_ptr<BlockQueue>)>;

  // All values are 0 at first. Reserves the space of the files, and writes each file once from start to end. Throws
  // IoError if a directory cannot be used or has too little space, ValueError for options that make no sense, and
  // std::bad_alloc. `io` must outlive the store.
  ChunkStore(std::span<const ChunkGroup> groups, Options options, Io& io, const Wrap& wrap = {});
  // Waits for readers and for running requests, and deletes the files.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Calls `use` for consecutive parts of `range`, one for each chunk. If `slot` is given, only this slot is read and
  // lent. With kModify and kOverwrite, the store keeps what `use` has written. If `use` throws, the parts of earlier
  // calls stay written. The part of the call that threw keeps what was written so far with kModify, and is undefined
  // with kOverwrite. `use` must not call the store, except for read_on().
  void lend(size_t group, Range range, Access access, const Use& use, std::optional<int> slot = std::nullopt);
  // Says that `reader` reads the lent part until the reader is done. Until then the values do not change, because
  // lend() waits for the reader before it lends the chunk to write, and before it uses the buffer for another chunk.
  // Only `use` may call read_on().
  void read_on(std::shared_ptr<Reader> reader);
  // Announces that lend() will be called for this range, after the ranges announced before. The store reads all slots
  // of the range ahead as soon as a buffer is free. If lend() is called in another order, that costs only time.
  void will_need(size_t group, Range range);
  // A range that will_need_next() announces.
  struct Announced {
    size_t group = 0;
    Range range;
  };
  // Works like will_need() for each range of `next`, in this order, but first withdraws all earlier announcements.
  void will_need_next(std::span<const Announced> next);
  // Writes all changed values to the files, and waits until they are there.
  void flush();

  // copy_buffered() and read_file() let a second thread read one slot of a chunk while another thread borrows (see
  // ChunkReader). Nobody may borrow the chunk to write in this time. These functions change neither what is announced
  // nor which chunks are in the buffers. `to` must have room for the slot with its padding, and be aligned for
  // O_DIRECT. A SlotBlocks has one bit for each block of the slot.
  using SlotBlocks = std::bitset<size_t(kChunkNumel / kSumNumel)>;
  // Copies the blocks that are in a buffer to `to`, each to its position in the slot. Returns the other blocks, among
  // them those that are being read into a buffer. The caller must read these from the file, which keeps their values as
  // long as nobody borrows the chunk to write.
  SlotBlocks copy_buffered(size_t chunk, int slot, std::byte* to);
  // Reads `blocks` from the file to `to`, each to its position in the slot. If it throws IoError, the store does not
  // fail; the caller should call fail(). May be called while another thread calls any function of the store.
  void read_file(size_t chunk, int slot, const SlotBlocks& blocks, std::byte* to) const;
  // Makes the store fail, so that later calls throw IoError with `message`. If the store has failed already, they still
  // throw the earlier error.
  void fail(const std::string& message);

  // Returns whether the store has failed, because a read, a write or an allocation has failed or fail() was called.
  bool has_failed() const { return !failure_.empty(); }
  const ChunkLayout& layout() const { return layout_; }
  const Options& options() const { return options_; }
  std::string_view queue_name() const { return transfers_->name(); }  // "io_uring" or "threads"
  const std::vector<SwapFile>& files() const { return files_; }
  int64_t memory_bytes() const { return layout_.totals().memory_bytes(options_.buffer_count); }
  int64_t bytes_read() const { return transfers_->bytes_moved(BlockRequest::Kind::kRead); }
  // Returns the bytes written, without the initial writes that filled the files.
  int64_t bytes_written() const { return transfers_->bytes_moved(BlockRequest::Kind::kWrite) - layout_.total_bytes(); }

 private:
  using Blocks = std::bitset<kMaxSlots * size_t(kChunkNumel / kSumNumel)>;  // the blocks of a record, slot after slot
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    std::optional<size_t> chunk;  // empty: the buffer is free
    Blocks there;                 // blocks that the buffer has, or that are being read into it
    Blocks unchecked;             // part of `there`: blocks read (or being read) but not compared with checksums
    Blocks changed;               // blocks that were lent to write, and whose write to the file has not begun
    bool writing = false;         // whether the buffer's running transfers write; if not, they read
    std::vector<std::shared_ptr<Reader>> readers;  // some of them might be done

    // Waits for the readers of the buffer, and then assigns the buffer, without any blocks, to another chunk.
    void reset(size_t of_chunk) {
      await_readers();
      chunk = of_chunk;
      there = unchecked = changed = {};
    }
    bool is_read() const {
      return std::any_of(readers.begin(), readers.end(), [](const auto& reader) { return !reader->is_done(); });
    }
    void await_readers() {
      for (const auto& reader : readers) reader->await();
      readers.clear();
    }
  };
  struct Planned {
    size_t chunk = 0;
    Blocks blocks;
    Blocks overwritten = {};  // part of `blocks` that need not be read

    Blocks to_read() const { return blocks & ~overwritten; }
  };

  void make_queue(const Wrap& wrap);
  void fill_files();
  // Calls `all`. If `all` throws, every later call of guarded() throws IoError with the same message.
  template <typename Call>
  void guarded(const Call& all);
  std::vector<Planned> chunks_of(size_t group, Range range, std::optional<int> slot = std::nullopt,
                                 Access access = Access::kRead) const;
  void append_to_plan(size_t group, Range range);
  void follow_plan(const std::vector<Planned>& next);
  Buffer& bring(const Planned& wanted);
  Buffer& least_needed();
  Buffer* find(size_t chunk);
  bool is_planned(size_t chunk) const;
  void read_ahead();
  void begin_read(Buffer& buffer, const Blocks& blocks);
  void begin_write(Buffer& buffer);
  void leave_current();
  void wait_for(Buffer& buffer);
  void check(Buffer& buffer, const Blocks& blocks);
  // Throws IoError if the `bytes` bytes at `data` do not have the checksum sums_[sum]. These bytes were read from
  // `offset` of the chunk's record. Does nothing if Options::verify is false.
  void compare(const Chunk& chunk, size_t sum, const std::byte* data, int64_t bytes, int64_t offset) const;
  template <typename Visit>
  void for_each_stretch(const Chunk& chunk, const Blocks& blocks, const Visit& visit) const;
  template <typename Visit>
  void for_each_sum(const Buffer& buffer, const Blocks& blocks, const Visit& visit);
  size_t number(const Buffer& buffer) const { return size_t(&buffer - buffers_.data()); }

  Options options_;
  Io& io_;
  ChunkLayout layout_;
  std::vector<SwapFile> files_;
  std::vector<uint64_t> sums_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<TransferQueue> transfers_;  // declared after the memory and the files that it uses
  Buffer* current_ = nullptr;                 // the buffer of the chunk that was lent last; null after flush()
  std::deque<Planned> plan_;                  // announced chunks, in the order in which they will be lent
  std::string failure_;
};

}  // namespace zeroshard
