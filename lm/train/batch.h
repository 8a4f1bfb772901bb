#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"

namespace zeroshard {

struct TrainBatch {
  TokenBatch tokens;
  at::Tensor targets;  // int64, [batch, length]; kNoTarget at positions without a target
  int64_t num_targets = 0;
};

// Makes a batch of `rows` on `device`. All rows must have the same length. Without `sequence`, the batch has whole
// rows. With `sequence`, its ranks share the rows, and their number must divide the length. The batch then has this
// rank's piece of each row's ids and targets, but the documents of whole rows. `documents` stays undefined if no row
// has more than one document. The host does not wait for the copy to a device. id_range of the batch is set, so that
// the model can check the ids later without waiting for the device.
TrainBatch make_batch(const std::vector<TokenRow>& rows, at::Device device,
                      const std::shared_ptr<const SequenceGroup>& sequence = nullptr);

// Makes a batch of one row with these ids.
TokenBatch batch_of(const std::vector<int32_t>& ids, at::Device device);

// Returns the sum of -log p(target) over all targets, as an fp32 scalar. `logits`: [batch, length, vocabulary].
at::Tensor sum_of_losses(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace zeroshard
