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

// The size of the buffers through which written data passes.
inline constexpr int64_t kRecordPieceBytes = int64_t{1} << 20;
inline constexpr int kRecordBuffers = 8;
inline constexpr int64_t kRecordStagingBytes = kRecordBuffers * kRecordPieceBytes;

// Keeps records (byte strings) in swap files until they are dropped. A record is copied to buffers, which are written
// to the file in the background. Records are expected back in reverse order: while the caller uses a record, the next
// older one is read ahead. The files are as large as the most that was kept at one time, because the space of dropped
// records is used again.
//
// Any number of threads may use it; one call runs at a time. Functions throw IoError with the path. After an error
// every call throws the same error.
class RecordStore {
 public:
  struct Options {
    std::vector<std::string> directories;    // one file in each; records are distributed in turn
    int64_t block_bytes = int64_t{1} << 20;  // bytes of a write request
    int queue_depth = 32;                    // largest number of running requests
    int thread_count = 4;                    // used if io_uring is refused
    bool verify = true;                      // check checksums when records are read
    RingSystem* ring = nullptr;              // null: only threads
  };
  using Id = uint64_t;
  // Called once, before the first error is thrown. It must not call the store.
  using OnFailure = std::function<void(const std::string& message)>;
  // For tests: wraps the queue that the store would use.
  using Wrap = std::function<std::unique_ptr<BlockQueue>(std::unique_ptr<BlockQueue>)>;

  // Throws IoError if a directory cannot be used, ValueError for options that make no sense, and std::bad_alloc. `io`
  // must outlive the store.
  RecordStore(Options options, Io& io, OnFailure on_failure = {}, const Wrap& wrap = {});
  // Waits for running requests, and deletes the files.
  ~RecordStore();
  RecordStore(const RecordStore&) = delete;
  RecordStore& operator=(const RecordStore&) = delete;

  // Stores `data`, which must not be empty and may change when this returns.
  Id put(std::span<const std::byte> data);
  // Returns the record in its own memory. It may be requested again until it is dropped, also after std::bad_alloc.
  DirectBuffer get(Id id);
  // Frees the space of the record. If this fails, the next call throws the error.
  void drop(Id id) noexcept;
  // Announces that get() will be called for the newest record, so that the store reads it ahead.
  void will_get_newest();
  // Makes the store call OnFailure no more.
  void forget_listener();

  const Options& options() const { return options_; }
  // A swap file and its free ranges.
  struct File {
    SwapFile swap;
    FreeSpace space = {};
  };
  const std::vector<File>& files() const { return files_; }
  std::string_view queue_name() const { return transfers_->name(); }  // "io_uring" or "threads"
  int64_t num_records() const;
  int64_t file_bytes() const;  // size of all files
  int64_t free_bytes() const;  // free part of file_bytes()
  int64_t bytes_read() const;
  int64_t bytes_written() const;

 private:
  struct Record {
    size_t file = 0;
    int64_t offset = 0, bytes = 0;
    std::vector<uint64_t> sums = {};  // one per piece

    int64_t padded() const;
  };
  struct Buffer {  // its transfers write a piece
    DirectBuffer memory;
    Id record = 0;
  };
  struct Slot {  // its transfers read a record
    std::optional<Id> record;
    DirectBuffer memory = {};
  };

  // Throws StateError in a forked child.
  void check_process() const;
  void make_queue(Io& io, const Wrap& wrap);
  // Calls `all`. If it throws, every later call throws the same error.
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
  mutable std::mutex mutex_;  // protects the following members
  std::vector<File> files_;
  std::map<Id, Record> records_;
  Id last_ = 0;
  std::vector<Buffer> buffers_;
  size_t next_buffer_ = 0;
  std::array<Slot, 2> slots_;                 // for the requested record, and for the one that is read ahead
  std::unique_ptr<TransferQueue> transfers_;  // declared after the memory and files that it uses
  std::string failure_;
};

}  // namespace zeroshard
