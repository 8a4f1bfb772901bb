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

// Keeps the values of groups of elements in swap files, and lends ranges of them in memory.
//
// Note [Chunks on their way]
// A few buffers hold one chunk each. A chunk that is lent was read ahead, or is read now. What its borrower has written
// stays in the buffer until another chunk is lent; then it is written behind, while the next chunks are lent. Until the
// write is done the buffer is neither changed nor given to another chunk. So reads, use and writes overlap, except with
// a single buffer. Each buffer knows by block what of the chunk it has and what has changed: blocks that nobody borrows
// are not read.
//
// Only one thread at a time may use it, but for read_file(). Functions throw IoError with the path, also for what was
// written behind; from then on every call throws the same error, since what the files hold is unknown.
class ChunkStore {
 public:
  struct Options {
    std::vector<std::string> directories;  // one swap file in each; chunks are striped
    int buffer_count = 4;
    int64_t chunk_numel = kChunkNumel;
    int64_t block_bytes = int64_t{1} << 20;  // of a request
    int queue_depth = 32;                    // requests under way at most
    int thread_count = 4;                    // where io_uring is refused
    bool verify = true;                      // checksums are checked when values are read
    RingSystem* ring = nullptr;              // null: threads alone
    // Makes the memory of a buffer, aligned for O_DIRECT. Null: allocate_direct().
    std::function<std::shared_ptr<std::byte>(int64_t bytes)> allocate = {};
  };
  // kOverwrite: `use` writes all values, and what was there before is not read.
  enum class Access : uint8_t { kRead, kModify, kOverwrite };
  // `values`: by slot, those of the first element of `part`; where one slot is lent, of that alone. The addresses of
  // narrow values are given as those of fp32 ones are. Valid during the call only.
  using Use = std::function<void(Range part, std::span<float* const> values)>;
  // Reads what was lent after the call that lent it, as a copy to a device does.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual bool is_done() = 0;
    virtual void await() = 0;
  };
  // For tests: makes another queue of the one that the store would use.
  using Wrap = std::function<std::unique_ptr<BlockQueue>(std::unique_ptr<BlockQueue>)>;

  // All values are 0. Reserves the files and writes them once, from end to end. Throws IoError where a directory cannot
  // be used or has too little space, ValueError for options that make no sense, std::bad_alloc. `io` outlives it.
  ChunkStore(std::span<const ChunkGroup> groups, Options options, Io& io, const Wrap& wrap = {});
  // Waits for what is under way, and drops the files.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Calls `use` for consecutive parts that make up `range`. Except with kRead, what `use` has written is kept, also
  // when it throws; with kOverwrite, the values of that part are then undefined. `use` must not call the store. Of
  // other slots than `slot`, if that is given, nothing is read or written.
  void lend(size_t group, Range range, Access access, const Use& use, std::optional<int> slot = std::nullopt);
  // Called by `use`, the one call that it may make: `reader` reads the part until it is done. Before that its values
  // stay as they are: who borrows them to write waits, and so does who needs the buffer.
  void read_on(std::shared_ptr<Reader> reader);
  // lend() will be called for this, after what was announced before: it is read ahead. Another order costs time alone.
  void will_need(size_t group, Range range);
  // The same for all of `next`, one after another, in place of whatever was announced before.
  struct Announced {
    size_t group = 0;
    Range range;
  };
  void will_need_next(std::span<const Announced> next);
  // Returns when everything is written.
  void flush();

  // For a second thread that reads one slot of a chunk while others lend (see ChunkReader), as long as nobody borrows
  // the chunk to write. Neither changes what is planned or where chunks lie. `to` has room for the slot.
  using SlotBlocks = std::bitset<size_t(kChunkNumel / kSumNumel)>;
  // Copies the blocks that are in a buffer, and returns the others: until somebody writes, the file has these.
  SlotBlocks copy_buffered(size_t chunk, int slot, std::byte* to);
  // Reads `blocks` from the file. Beside any other call.
  void read_file(size_t chunk, int slot, const SlotBlocks& blocks, std::byte* to) const;
  // From now on every call throws `message`, unless it throws another one already.
  void fail(const std::string& message);

  // A read or a write has failed, and every later call throws IoError.
  bool has_failed() const { return !failure_.empty(); }
  const ChunkLayout& layout() const { return layout_; }
  const Options& options() const { return options_; }
  std::string_view queue_name() const { return transfers_->name(); }  // "io_uring" or "threads"
  const std::vector<SwapFile>& files() const { return files_; }
  int64_t memory_bytes() const { return layout_.totals().memory_bytes(options_.buffer_count); }
  int64_t bytes_read() const { return transfers_->bytes_moved(BlockRequest::Kind::kRead); }
  // After the files were filled.
  int64_t bytes_written() const { return transfers_->bytes_moved(BlockRequest::Kind::kWrite) - layout_.total_bytes(); }

 private:
  using Blocks = std::bitset<kMaxSlots * size_t(kChunkNumel / kSumNumel)>;  // of a record: slot after slot
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    std::optional<size_t> chunk;                   // empty: the buffer is free
    Blocks there;                                  // blocks that it has, or that are being read
    Blocks unchecked;                              // of these: read, but not compared with their checksums
    Blocks changed;                                // not in the file yet
    bool writing = false;                          // else reading, where its transfers are not done
    std::vector<std::shared_ptr<Reader>> readers;  // some may be done

    // Waits for its readers.
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
    Blocks overwritten = {};  // of these: they need not be read

    Blocks to_read() const { return blocks & ~overwritten; }
  };

  void make_queue(const Wrap& wrap);
  void fill_files();
  // Calls `all`; its error is that of every later call.
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
  // Throws IoError unless `bytes` of `data`, which lie at `offset` of the chunk's record, have the checksum.
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
  std::unique_ptr<TransferQueue> transfers_;  // after what it reads and writes
  Buffer* current_ = nullptr;                 // of the chunk that was lent last
  std::deque<Planned> plan_;                  // what will be lent next
  std::string failure_;
};

}  // namespace zeroshard
