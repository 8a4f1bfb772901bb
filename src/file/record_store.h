#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process_mark.h"
#include "file/direct_buffer.h"
#include "file/free_space.h"
#include "file/swap_file.h"
#include "file/transfer_queue.h"

namespace zeroshard {

// What is written passes through buffers of this size.
inline constexpr int64_t kRecordPieceBytes = int64_t{1} << 20;
inline constexpr int kRecordBuffers = 8;
inline constexpr int64_t kRecordStagingBytes = kRecordBuffers * kRecordPieceBytes;

// Keeps records, strings of bytes, in swap files until they are dropped. A record is copied to buffers and written
// behind. What was put last is expected back first: while a record is used, the youngest that is older is read ahead.
// The files grow to what is kept at once; space of dropped records is used again.
//
// Any number of threads may use it; one waits while another one does. Functions throw IoError with the path; from then
// on every call throws the same error.
class RecordStore {
 public:
  struct Options {
    std::vector<std::string> directories;    // one file in each; records go to them in turn
    int64_t block_bytes = int64_t{1} << 20;  // of a request that writes
    int queue_depth = 32;                    // requests under way at most
    int thread_count = 4;                    // where io_uring is refused
    bool verify = true;                      // checksums are checked when records are read
    RingSystem* ring = nullptr;              // null: threads alone
  };
  using Id = uint64_t;
  // Told once, before the first error is thrown. Must not call the store.
  using OnFailure = std::function<void(const std::string& message)>;
  // For tests: makes another queue of the one that the store would use.
  using Wrap = std::function<std::unique_ptr<BlockQueue>(std::unique_ptr<BlockQueue>)>;

  // Throws IoError where a directory cannot be used, ValueError for options that make no sense, std::bad_alloc. `io`
  // outlives it.
  RecordStore(Options options, Io& io, OnFailure on_failure = {}, const Wrap& wrap = {});
  // Waits for what is under way, and drops the files.
  ~RecordStore();
  RecordStore(const RecordStore&) = delete;
  RecordStore& operator=(const RecordStore&) = delete;

  // `data`, which is not empty, may change as soon as this returns.
  Id put(std::span<const std::byte> data);
  // The record, in memory of its own; it may be asked for again until it is dropped, also after std::bad_alloc.
  DirectBuffer get(Id id);
  // Its space is free. Errors come out at the next call.
  void drop(Id id) noexcept;
  // get() will be called for the newest record.
  void will_get_newest();
  // Nobody is told of failures any more.
  void forget_listener();

  const Options& options() const { return options_; }
  // A file and what of it is free.
  struct File {
    SwapFile swap;
    FreeSpace space = {};
  };
  const std::vector<File>& files() const { return files_; }
  std::string_view queue_name() const { return transfers_->name(); }  // "io_uring" or "threads"
  int64_t num_records() const;
  int64_t file_bytes() const;  // of all files
  int64_t free_bytes() const;  // of these
  int64_t bytes_read() const;
  int64_t bytes_written() const;

 private:
  struct Record {
    size_t file = 0;
    int64_t offset = 0, bytes = 0;
    std::vector<uint64_t> sums = {};  // of each piece

    int64_t padded() const;
  };
  struct Buffer {  // whose transfers write a piece
    DirectBuffer memory;
    Id record = 0;
  };
  struct Slot {  // whose transfers read a record
    std::optional<Id> record;
    DirectBuffer memory = {};
  };

  // Throws StateError in a forked child.
  void check_process() const;
  void make_queue(Io& io, const Wrap& wrap);
  // Calls `all`; its error is that of every later call.
  template <typename Call>
  void guarded(const Call& all);
  void note_failure(const char* message) noexcept;
  Record allocate(int64_t bytes);
  Id write(std::span<const std::byte> data);
  void wait_for(size_t owner);
  void wait_for_writes(Id id);
  void begin_read(Slot& slot, Id id);
  Slot& slot_for(Id id);
  void read_ahead_of(Id id, const Slot* used);
  void check(const Record& record, const std::byte* data) const;
  size_t owner(const Buffer& buffer) const { return size_t(&buffer - buffers_.data()); }
  size_t owner(const Slot& slot) const { return buffers_.size() + size_t(&slot - slots_.data()); }

  ProcessMark process_;
  Options options_;
  OnFailure on_failure_;
  mutable std::mutex mutex_;  // of all that follows
  std::vector<File> files_;
  std::map<Id, Record> records_;
  Id last_ = 0;
  std::vector<Buffer> buffers_;
  size_t next_buffer_ = 0;
  std::array<Slot, 2> slots_;                 // of the record that is asked for, and of the one that is read ahead
  std::unique_ptr<TransferQueue> transfers_;  // after what it reads and writes
  std::string failure_;
};

}  // namespace zeroshard
