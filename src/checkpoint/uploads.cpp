#include "checkpoint/uploads.h"

#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "checkpoint/attempt.h"

namespace zeroshard {

Uploads::~Uploads() {
  for (Chunk& chunk : chunks_) {
    if (!chunk.memory) continue;
    attempt([&] { await(chunk); },
            [](const std::string& reason) { return "what was loaded did not arrive: " + reason; });
    ledger_.remove(Category::kCheckpointStaging, Tier::kHost, chunk_bytes_);
  }
}

std::byte* Uploads::place(int64_t bytes) {
  ZS_ASSERT(bytes <= chunk_bytes_, "more is to be uploaded than fits");
  if (used_ + bytes > chunk_bytes_) finish();
  if (!chunks_.back().memory) allocate();
  Chunk& chunk = chunks_[filling_];
  await(chunk);
  return chunk.memory.get() + used_;
}

void Uploads::send(std::shared_ptr<SliceData> to, int64_t offset, int64_t bytes) {
  constexpr int64_t kAlignment = 64;  // enough for any element type
  uploads_.push_back({std::move(to), offset, chunks_[filling_].memory.get() + used_, bytes});
  used_ = align_up(used_ + bytes, kAlignment);
}

void Uploads::finish() {
  Chunk& chunk = chunks_[filling_];
  if (copies_ == nullptr) {
    for (const Upload& upload : uploads_) upload.to->write(upload.offset, upload.bytes, upload.from);
  } else if (!uploads_.empty()) {
    copies_->in_order(
        [&] {
          try {
            for (const Upload& upload : uploads_) upload.to->begin_write(upload.offset, upload.bytes, upload.from);
          } catch (...) {
            chunk.wait = copies_->mark();  // for copies that have already started
            throw;
          }
          chunk.wait = copies_->mark();
        },
        DeviceCopies::Order::kBeforeLater);
  }
  uploads_.clear();
  used_ = 0;
  filling_ = 1 - filling_;
}

void Uploads::allocate() {
  for (Chunk& chunk : chunks_) {
    if (chunk.memory) continue;  // allocated by an earlier call that failed for the second chunk
    if (copies_ != nullptr)
      chunk.memory = copies_->host_memory(chunk_bytes_);
    else
      chunk.memory = {new std::byte[size_t(chunk_bytes_)], std::default_delete<std::byte[]>()};
    ledger_.add(Category::kCheckpointStaging, Tier::kHost, chunk_bytes_);
  }
}

// Waits until the device no longer copies from the chunk.
void Uploads::await(Chunk& chunk) {
  if (const DeviceCopies::Wait wait = std::exchange(chunk.wait, nullptr)) wait();
}

}  // namespace zeroshard
