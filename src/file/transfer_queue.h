#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "file/block_queue.h"

namespace zeroshard {

// A range of a file that is read into memory or written from memory.
struct Transfer {
  BlockRequest::Kind kind = BlockRequest::Kind::kRead;
  size_t file = 0;
  std::byte* data = nullptr;  // must be aligned to kDirectAlignment, like `bytes` and `offset`
  int64_t bytes = 0, offset = 0;
  size_t owner = 0;         // a number below `num_owners`, for which the caller asks is_idle()
  int64_t block_bytes = 0;  // the most bytes of one request, aligned like `bytes`; 0: as the queue has it
};

// Runs transfers of any length. Cuts each transfer into blocks that go to a BlockQueue, at most `depth` at a time.
// Continues after short results, and repeats interrupted requests. If the system has no room for a request, the request
// waits until another one is done, or for a moment if none is running. A request that has moved nothing in 1000 tries
// is an error. If a file does not accept an access with O_DIRECT, turns O_DIRECT off for that file. Only one thread at
// a time may use a TransferQueue. begin() and advance() throw IoError with the path and the position. After the first
// error they start nothing new and throw that error again.
class TransferQueue {
 public:
  struct File {
    int fd = -1;
    std::string path;  // for messages
    bool direct = false;
    std::function<std::string(int64_t offset)> what_is_at = {};  // for messages; can be empty
  };
  // `queue` must have been made for these files, in this order, and with this depth. `io` must outlive the object.
  TransferQueue(std::unique_ptr<BlockQueue> queue, Io& io, std::vector<File> files, size_t num_owners, int depth,
                int64_t block_bytes);
  // Waits for running requests. Does not start the blocks that still wait.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  std::string_view name() const { return queue_->name(); }
  // Starts a transfer, and does not wait for its end. The caller must neither change nor free the memory until
  // is_idle() is true for `transfer.owner`.
  void begin(const Transfer& transfer);
  bool is_idle(size_t owner) const { return pending_[owner] == 0; }
  bool is_idle() const { return waiting_.empty() && running_ == 0; }
  // Takes the available results, and starts blocks that had to wait for them. If `wait` is true and a request is
  // running, waits for at least one result.
  void advance(bool wait);
  int64_t bytes_moved(BlockRequest::Kind kind) const { return moved_[size_t(kind)]; }

 private:
  struct Block {
    Transfer rest;  // the part of the block that is left
    int tries = 0;  // how many tries in a row have moved nothing
  };
  void start_waiting();
  void take(const BlockResult& result);
  [[noreturn]] void fail(const Block& block, int64_t error);
  [[noreturn]] void fail(std::string_view operation, const File& file, int64_t error, const std::string& details);

  std::unique_ptr<BlockQueue> queue_;
  Io& io_;
  std::vector<File> files_;
  std::vector<int64_t> pending_;  // for each owner: number of blocks that are not done
  std::vector<Block> blocks_;     // the running block of each tag
  std::vector<uint64_t> free_tags_;
  std::deque<Block> waiting_;
  int running_ = 0;
  bool is_short_ = false;  // whether blocks must wait, because the system had no room for a request
  int64_t block_bytes_;
  int64_t moved_[2] = {0, 0};
  std::string failure_;
};

}  // namespace zeroshard
