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

// The size of each buffer through which written data passes.
inline constexpr int64_t kRecordPieceBytes = int64_t{1} << 20;
inline constexpr int kRecordBuffers = 8;
inline constexpr int64_t kRecordStagingBytes = kRecordBuffers * kRecordPieceBytes;

// Keeps records (byte strings) in swap files until they are dropped. A record is copied to buffers, which are written
// to a file in the background. Records should be requested and dropped in the reverse of the order in which they were
// stored. While the caller uses a record, the store reads the next older one ahead. Records take the space of dropped
// ones, so the files hardly grow beyond the most that was kept at one time.
//
// Any number of threads may use a store. One call runs at a time. Functions throw IoError with the path. After an error
// the store has failed. Each later put(), get() and will_get_newest() then throws IoError with the same message. In a
// forked child these three functions throw StateError, and the others do nothing to the files.
class RecordStore {
 public:
  struct Options {
    std::vector<std::string> directories;    // each has one file; records go to the files in turn
    int64_t block_bytes = int64_t{1} << 20;  // the most bytes of one request to write
    int queue_depth = 32;                    // the most requests that run at a time
    int thread_count = 4;                    // threads that read and write if io_uring is refused
    bool verify = true;                      // whether records that are read are compared with their checksums
    RingSystem* ring = nullptr;              // null: threads read and write
  };
  using Id = uint64_t;
  // The store calls this function once, when it fails. The function must not call the store.
  using OnFailure = std::function<void(const std::string& message)>;
  // Returns the queue that the store uses instead of the passed one, for tests.
  using Wrap = std::function<std::unique_ptr<BlockQueue>(std::unique_ptr<BlockQueue>)>;

  // Throws IoError if a directory cannot be used, ValueError for options that make no sense, and std::bad_alloc. `io`
  // must outlive the store.
  RecordStore(Options options, Io& io, OnFailure on_failure = {}, const Wrap& wrap = {});
  // Waits for running requests, and deletes the files. Does neither in a forked child.
  ~RecordStore();
  RecordStore(const RecordStore&) = delete;
  RecordStore& operator=(const RecordStore&) = delete;

  // Stores `data`, which must not be empty. `data` may change when put() has returned.
  Id put(std::span<const std::byte> data);
  // Waits for the record and returns it in memory that the caller owns. A record can be requested several times until
  // it is dropped, also after get() has thrown std::bad_alloc.
  DirectBuffer get(Id id);
  // Waits for the transfers of the record, drops the record and frees its space. If this fails, the store fails. If the
  // store has failed before, only drops the record. Does nothing if the record has been dropped.
  void drop(Id id) noexcept;
  // Announces that get() will be called for the newest record, so that the store reads this record ahead.
  void will_get_newest();
  // From now on the store does not call OnFailure.
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
  int64_t free_bytes() const;  // free part of these bytes
  int64_t bytes_read() const;
  int64_t bytes_written() const;

 private:
  struct Record {
    size_t file = 0;
    int64_t offset = 0, bytes = 0;
    std::vector<uint64_t> sums = {};  // one for each piece; none if Options::verify is false

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
  // Calls `all`. If `all` throws, every later call of guarded() throws IoError with the same message.
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
  mutable std::mutex mutex_;  // protects on_failure_ and the following members
  std::vector<File> files_;
  std::map<Id, Record> records_;
  Id last_ = 0;
  std::vector<Buffer> buffers_;
  size_t next_buffer_ = 0;
  std::array<Slot, 2> slots_;                 // one for the requested record, and one for the record that is read ahead
  std::unique_ptr<TransferQueue> transfers_;  // declared after the memory and the files that it uses
  std::string failure_;
};

}  // namespace zeroshard
