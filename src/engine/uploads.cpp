#include "engine/uploads.h"

#include <ATen/ops/empty.h>

#include "base/align.h"

namespace zeroshard {

void Uploads::stage(std::vector<StateSlice>& slices) {
  constexpr int64_t kAlignment = 64;  // of any element
  clear();
  int64_t bytes = 0;
  const auto is_staged = [](const StateSlice& slice) { return slice.bytes() > 0 && slice.on_host() == nullptr; };
  for (const StateSlice& slice : slices) {
    if (!is_staged(slice)) continue;
    uploads_.push_back({slice.data, slice.offset, bytes, slice.bytes()});
    bytes = align_up(bytes + slice.bytes(), kAlignment);
  }
  if (bytes == 0) return;
  host_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  bytes_ = bytes;
  ledger_.add(Category::kCheckpointStaging, Tier::kHost, bytes_);
  const std::shared_ptr<SliceData> staged = host_data(host_.data_ptr());
  size_t next = 0;
  for (StateSlice& slice : slices) {
    if (!is_staged(slice)) continue;
    slice.data = staged;
    slice.offset = uploads_[next++].begin;
  }
}

void Uploads::finish() {
  for (const Upload& upload : uploads_)
    upload.to->write(upload.offset, upload.bytes, static_cast<const std::byte*>(host_.const_data_ptr()) + upload.begin);
  clear();
}

void Uploads::clear() noexcept {
  if (bytes_ > 0) ledger_.remove(Category::kCheckpointStaging, Tier::kHost, bytes_);
  uploads_.clear();
  host_ = at::Tensor();
  bytes_ = 0;
}

}  // namespace zeroshard
