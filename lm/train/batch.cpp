#include "train/batch.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace zeroshard {
namespace {

at::Tensor stack(const std::vector<TokenRow>& rows, std::vector<int32_t> TokenRow::*field) {
  const auto length = static_cast<int64_t>((rows.front().*field).size());
  at::Tensor result = at::empty({static_cast<int64_t>(rows.size()), length}, at::kLong);
  int64_t* out = result.data_ptr<int64_t>();
  for (const TokenRow& row : rows) out = std::copy((row.*field).begin(), (row.*field).end(), out);
  return result;
}

// Rows of one document need no mask. Their padding comes last, where no token looks at it.
bool one_document_each(const std::vector<TokenRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const TokenRow& row) {
    return std::none_of(row.documents.begin(), row.documents.end(), [](int32_t document) { return document > 1; });
  });
}

}  // namespace

TrainBatch make_batch(const std::vector<TokenRow>& rows, at::Device device) {
  TrainBatch batch;
  batch.tokens.ids = stack(rows, &TokenRow::ids).to(device);
  if (!one_document_each(rows)) batch.tokens.documents = stack(rows, &TokenRow::documents).to(device);
  batch.targets = stack(rows, &TokenRow::targets).to(device);
  for (const TokenRow& row : rows) {
    const auto none = std::count(row.targets.begin(), row.targets.end(), kNoTarget);
    batch.num_targets += static_cast<int64_t>(row.targets.size()) - none;
  }
  return batch;
}

TokenBatch batch_of(const std::vector<int32_t>& ids, at::Device device) {
  TokenBatch batch;
  batch.ids = at::empty({1, static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.ids.data_ptr<int64_t>());
  batch.ids = batch.ids.to(device);
  return batch;
}

at::Tensor sum_of_losses(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten(), /*weight=*/{},
                                at::Reduction::Sum, kNoTarget);
}

}  // namespace zeroshard
