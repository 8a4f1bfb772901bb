#include "file/transfer_queue.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "file/direct_buffer.h"
#include "file/transfer.h"

namespace zeroshard {
namespace {

constexpr int kMaxRequestTries = 1000;  // for a request that is interrupted, or for which the system has no room
constexpr std::chrono::milliseconds kPause(1);

bool is_no_room(int64_t error) {
  return error == -EAGAIN || error == -EBUSY || error == -ENOMEM;
}

}  // namespace

TransferQueue::TransferQueue(std::unique_ptr<BlockQueue> queue, Io& io, std::vector<File> files, size_t num_owners,
                             int depth, int64_t block_bytes)
    : queue_(std::move(queue)),
      io_(io),
      files_(std::move(files)),
      pending_(num_owners, 0),
      blocks_(size_t(depth)),
      block_bytes_(block_bytes) {
  ZS_CHECK(depth >= 1, "the depth of the queue must be positive, got ", depth);
  ZS_CHECK(block_bytes >= kDirectAlignment && block_bytes % kDirectAlignment == 0,
           "blocks of files must be multiples of ", kDirectAlignment, " bytes, got ", block_bytes);
  for (int tag = depth; tag-- > 0;) free_tags_.push_back(uint64_t(tag));
}

TransferQueue::~TransferQueue() {
  queue_.reset();
}

void TransferQueue::begin(const Transfer& transfer) {
  const int64_t block_bytes = transfer.block_bytes > 0 ? transfer.block_bytes : block_bytes_;
  for (int64_t done = 0; done < transfer.bytes; done += block_bytes) {
    Transfer part = transfer;
    part.data += done;
    part.offset += done;
    part.bytes = std::min(block_bytes, transfer.bytes - done);
    waiting_.push_back({part});
    ++pending_[transfer.owner];
  }
  start_waiting();
}

void TransferQueue::advance(bool wait) {
  start_waiting();
  if (running_ == 0) return;
  std::vector<BlockResult> results;
  const int waited = queue_->collect(wait, results);
  running_ -= int(results.size());
  for (const BlockResult& result : results) take(result);
  if (waited < 0) fail("wait for", files_.front(), waited, "");
  start_waiting();
}

void TransferQueue::start_waiting() {
  if (!failure_.empty()) throw IoError(failure_);
  if (is_short_) {
    if (running_ > 0 || waiting_.empty()) return;
    std::this_thread::sleep_for(kPause);
    is_short_ = false;
  }
  std::vector<BlockRequest> requests;
  while (!waiting_.empty() && !free_tags_.empty()) {
    const uint64_t tag = free_tags_.back();
    const Transfer& next = waiting_.front().rest;
    requests.push_back({next.kind, next.file, next.data, next.bytes, next.offset, tag});
    blocks_[tag] = waiting_.front();
    free_tags_.pop_back();
    waiting_.pop_front();
  }
  if (requests.empty()) return;
  running_ += int(requests.size());
  queue_->start(requests);
}

void TransferQueue::take(const BlockResult& result) {
  Block block = blocks_[result.tag];
  free_tags_.push_back(result.tag);
  File& file = files_[block.rest.file];
  if (result.result > 0) {
    moved_[size_t(block.rest.kind)] += result.result;
    block.tries = 0;
    is_short_ = false;
    block.rest.data += result.result;
    block.rest.offset += result.result;
    block.rest.bytes -= result.result;
    if (block.rest.bytes > 0) return waiting_.push_front(block);
    --pending_[block.rest.owner];
    return;
  }
  if (result.result == -EINVAL && file.direct) {
    // O_DIRECT does not work here. The device needs another alignment, or a short result has left a position that is
    // not aligned.
    file.direct = false;
    const int changed = retry_interrupted([&] { return io_.set_direct(file.fd, false); });
    if (changed < 0) fail(block, changed);
    return waiting_.push_front(block);
  }
  is_short_ = is_short_ || is_no_room(result.result);
  // ECANCELED means that the thread which started the request has ended, so that the kernel has cancelled the request.
  const bool again = result.result == -EINTR || result.result == -ECANCELED || is_no_room(result.result) ||
                     (result.result == -EINVAL && block.tries == 0);  // started when the file still had O_DIRECT
  if (!again || ++block.tries >= kMaxRequestTries) fail(block, result.result == 0 ? -EIO : result.result);
  waiting_.push_front(block);
}

void TransferQueue::fail(const Block& block, int64_t error) {
  const File& file = files_[block.rest.file];
  const std::string full = space_details(io_, file.fd, error, block.rest.bytes);
  fail(block.rest.kind == BlockRequest::Kind::kRead ? "read" : "write", file, error,
       concat("at byte ", block.rest.offset, file.what_is_at ? file.what_is_at(block.rest.offset) : "",
              full.empty() ? "" : ", ", full));
}

void TransferQueue::fail(std::string_view operation, const File& file, int64_t error, const std::string& details) {
  try {
    throw_io_error(operation, file.path, error, details);
  } catch (const IoError& failure) {
    failure_ = failure.what();
    throw;
  }
}

}  // namespace zeroshard
