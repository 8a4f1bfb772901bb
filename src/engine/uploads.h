#pragma once
#include <array>
#include <memory>
#include <vector>

#include "checkpoint/device_copies.h"
#include "checkpoint/manifest.h"
#include "checkpoint/uploader.h"
#include "memory/ledger.h"

namespace zeroshard {

// Fills memory outside the host from files through two chunks of host memory, which the ledger counts: while a device
// copies one, the other is filled. The current stream is that of the caller.
class Uploads final : public Uploader {
 public:
  static constexpr int64_t kBytes = 2 * kPieceBytes;  // of host memory, if there is anything to upload

  // `copies` may be null: what is sent is then written by the host, when a chunk is full.
  explicit Uploads(Ledger& ledger, DeviceCopies* copies = nullptr, int64_t chunk_bytes = kBytes / 2)
      : ledger_(ledger), copies_(copies), chunk_bytes_(chunk_bytes) {}
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;
  // Waits for what the device copies. What was not finished is dropped.
  ~Uploads() override;

  int64_t max_bytes() const override { return chunk_bytes_; }
  std::byte* place(int64_t bytes) override;
  void send(std::shared_ptr<SliceData> to, int64_t offset, int64_t bytes) override;
  // The device has been given all copies.
  void finish() override;

 private:
  struct Chunk {
    std::shared_ptr<std::byte> memory;
    DeviceCopies::Wait wait;  // for the copies from it; null: there are none
  };
  struct Upload {
    std::shared_ptr<SliceData> to;
    int64_t offset;  // there
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
  int64_t used_ = 0;             // of the chunk being filled
  std::vector<Upload> uploads_;  // from that chunk
};

}  // namespace zeroshard
