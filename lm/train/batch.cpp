#include "train/batch.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "zeroshard/sequence.h"

namespace zeroshard {
namespace {

// Copies numbers to `device`. The host does not wait for the copy. The device's stream reads the numbers from pinned
// memory later, and torch's allocator does not reuse that memory before then.
class Upload {
 public:
  Upload(int64_t rows, int64_t length, at::Device device)
      : device_(device),
        host_(at::empty({rows, length}, at::TensorOptions().dtype(at::kLong).pinned_memory(!device.is_cpu()))),
        next_(host_.data_ptr<int64_t>()) {}
  void add(std::span<const int32_t> numbers) { next_ = std::copy(numbers.begin(), numbers.end(), next_); }
  at::Tensor send() const { return host_.to(device_, /*non_blocking=*/true); }

 private:
  at::Device device_;
  at::Tensor host_;
  int64_t* next_;
};

at::Tensor stack(const std::vector<std::span<const int32_t>>& rows, at::Device device) {
  Upload upload(static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.front().size()), device);
  for (const std::span<const int32_t> row : rows) upload.add(row);
  return upload.send();
}

void widen(std::optional<std::pair<int64_t, int64_t>>& range, std::span<const int32_t> ids) {
  if (ids.empty()) return;
  const auto [least, greatest] = std::minmax_element(ids.begin(), ids.end());
  if (!range) range.emplace(*least, *greatest);
  range->first = std::min<int64_t>(range->first, *least);
  range->second = std::max<int64_t>(range->second, *greatest);
}

// Returns whether every row has at most one document. Such rows need no mask, because their padding comes last, so that
// no token of the document attends to it.
bool one_document_each(const std::vector<TokenRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const TokenRow& row) {
    return std::none_of(row.documents.begin(), row.documents.end(), [](int32_t document) { return document > 1; });
  });
}

}  // namespace

TrainBatch make_batch(const std::vector<TokenRow>& rows, at::Device device,
                      const std::shared_ptr<const SequenceGroup>& sequence) {
  const size_t pieces = sequence ? size_t(sequence->size()) : 1, number = sequence ? size_t(sequence->rank()) : 0;
  const size_t length = rows.front().ids.size() / pieces;
  std::vector<std::span<const int32_t>> ids, documents, targets;
  for (const TokenRow& row : rows) {
    ids.push_back(std::span(row.ids).subspan(number * length, length));
    documents.emplace_back(row.documents);
    targets.push_back(std::span(row.targets).subspan(number * length, length));
  }
  TrainBatch batch;
  batch.tokens.sequence = sequence;
  batch.tokens.ids = stack(ids, device);
  if (!one_document_each(rows)) batch.tokens.documents = stack(documents, device);
  batch.targets = stack(targets, device);
  for (const std::span<const int32_t> row : ids) widen(batch.tokens.id_range, row);
  for (const std::span<const int32_t> row : targets)
    batch.num_targets += std::ranges::count_if(row, [](int32_t target) { return target != kNoTarget; });
  return batch;
}

TokenBatch batch_of(const std::vector<int32_t>& ids, at::Device device) {
  TokenBatch batch;
  Upload upload(1, static_cast<int64_t>(ids.size()), device);
  upload.add(ids);
  batch.ids = upload.send();
  widen(batch.id_range, ids);
  return batch;
}

at::Tensor sum_of_losses(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten(), /*weight=*/{},
                                at::Reduction::Sum, kNoTarget);
}

}  // namespace zeroshard
