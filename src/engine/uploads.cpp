#include "engine/uploads.h"

#include <ATen/ops/empty.h>

#include "base/align.h"
#include "device/flat_buffer.h"

namespace zeroshard {

void Uploads::stage(std::vector<StateSlice>& slices) {
  constexpr int64_t kAlignment = 64;  // of any element
  clear();
  int64_t bytes = 0;
  const auto is_staged = [](const StateSlice& slice) { return !slice.on_host && slice.bytes() > 0; };
  for (const StateSlice& slice : slices) {
    if (!is_staged(slice)) continue;
    uploads_.push_back({slice.data, bytes, slice.bytes()});
    bytes = align_up(bytes + slice.bytes(), kAlignment);
  }
  if (bytes == 0) return;
  host_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  bytes_ = bytes;
  ledger_.add(Category::kCheckpointStaging, Tier::kHost, bytes_);
  size_t next = 0;
  for (StateSlice& slice : slices) {
    if (!is_staged(slice)) continue;
    slice.data = static_cast<std::byte*>(host_.data_ptr()) + uploads_[next++].begin;
    slice.on_host = true;
  }
}

void Uploads::finish() {
  for (const Upload& upload : uploads_)
    view_memory(upload.device, upload.bytes, at::kByte, device_)
        .copy_(host_.slice(0, upload.begin, upload.begin + upload.bytes));
  clear();
}

void Uploads::clear() noexcept {
  if (bytes_ > 0) ledger_.remove(Category::kCheckpointStaging, Tier::kHost, bytes_);
  uploads_.clear();
  host_ = at::Tensor();
  bytes_ = 0;
}

}  // namespace zeroshard
