#pragma once
#include <array>
#include <memory>
#include <vector>

#include "checkpoint/device_copies.h"
#include "checkpoint/manifest.h"
#include "checkpoint/uploader.h"
#include "memory/ledger.h"

namespace zeroshard {

// Copies loaded data to slices that are not in host memory, through two chunks of host memory that the ledger counts.
// While the device copies from one chunk, the caller fills the other. The copies run after the work that is already on
// the current stream, and before its later work.
class Uploads final : public Uploader {
 public:
  static constexpr int64_t kBytes = 2 * kPieceBytes;  // both chunks, allocated when there is something to upload

  // If `copies` is null, the host writes the contents of a chunk by SliceData::write().
  explicit Uploads(Ledger& ledger, DeviceCopies* copies = nullptr, int64_t chunk_bytes = kBytes / 2)
      : ledger_(ledger), copies_(copies), chunk_bytes_(chunk_bytes) {}
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;
  // Waits for the copies of the device that have begun. Drops the uploads whose copies have not begun.
  ~Uploads() override;

  int64_t max_bytes() const override { return chunk_bytes_; }
  std::byte* place(int64_t bytes) override;
  void send(std::shared_ptr<SliceData> to, int64_t offset, int64_t bytes) override;
  // Starts the copies from the chunk that is being filled. After that, the copies of all uploads have begun. Without
  // `copies`, all are complete when it returns.
  void finish() override;

 private:
  struct Chunk {
    std::shared_ptr<std::byte> memory;
    DeviceCopies::Wait wait;  // waits for the copies from the chunk; null: there are none
  };
  struct Upload {
    std::shared_ptr<SliceData> to;
    int64_t offset;  // offset in `to`
    const std::byte* from;
    int64_t bytes;
  };

  void allocate();
  void await(Chunk& chunk);

  Ledger& ledger_;
  DeviceCopies* copies_;
  int64_t chunk_bytes_;
  std::array<Chunk, 2> chunks_;
  size_t filling_ = 0;
  int64_t used_ = 0;             // used bytes of the chunk that is being filled
  std::vector<Upload> uploads_;  // uploads from the chunk that is being filled
};

}  // namespace zeroshard
