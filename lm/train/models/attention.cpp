#include "train/models/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <limits>
#include <tuple>

#include "zeroshard/sequence.h"

namespace zeroshard {
namespace {

at::Tensor make_mask(const TokenBatch& batch, int64_t past, int64_t window) {
  const int64_t length = batch.row_length();
  const at::Tensor places = at::arange(past + length, batch.ids.options().dtype(at::kInt));
  const at::Tensor own = places.narrow(0, past, length).unsqueeze(1);
  at::Tensor seen = own.ge(places);  // bool, because another dtype would need more memory for this shape
  if (window > 0) seen.logical_and_((own - window).lt(places));
  seen = seen.view({1, 1, length, past + length});
  if (!batch.documents.defined()) return seen;
  const at::Tensor same = batch.documents.unsqueeze(2).eq(batch.documents.unsqueeze(1));
  return same.unsqueeze(1).logical_and(seen);
}

// Computes attention with capped scores, for which torch has no fused kernel.
at::Tensor attend_capped(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& mask, const AttentionOptions& options) {
  const int64_t groups = query.size(1) / key.size(1);
  const at::Tensor keys = groups == 1 ? key : at::repeat_interleave(key, groups, 1);
  const at::Tensor values = groups == 1 ? value : at::repeat_interleave(value, groups, 1);
  at::Tensor scores = at::matmul(query, keys.transpose(2, 3)) * options.scale;
  scores = at::tanh(scores / options.softcap) * options.softcap;
  scores = scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor shares = at::softmax(scores, -1, at::kFloat).to(query.scalar_type());
  return at::matmul(at::dropout(shares, options.dropout, options.dropout > 0), values);
}

}  // namespace

// Returns `window`, or 0 if the window covers the whole row and so has no effect.
int64_t AttentionContext::effective(int64_t window) const {
  return window < past_ + batch_.row_length() ? window : 0;
}

const at::Tensor& AttentionContext::explicit_mask(int64_t window) {
  at::Tensor& mask = masks_[effective(window)];
  if (!mask.defined()) mask = make_mask(batch_, past_, effective(window));
  return mask;
}

const at::Tensor& AttentionContext::mask(int64_t window) {
  static const at::Tensor none;
  const bool all_before = effective(window) == 0 && !batch_.documents.defined();
  return all_before && (past_ == 0 || batch_.ids.size(1) == 1) ? none : explicit_mask(window);
}

at::Tensor attend(at::Tensor query, at::Tensor key, at::Tensor value, AttentionContext& context,
                  const AttentionOptions& options) {
  if (context.sequence() != nullptr) {
    const std::vector<at::Tensor> whole = context.sequence()->exchange({query, key, value});
    query = whole[0], key = whole[1], value = whole[2];
  }
  if (context.cache()) std::tie(key, value) = context.cache()->append(options.layer, key, value);
  at::Tensor mixed;
  if (options.softcap > 0) {
    mixed = attend_capped(query, key, value, context.explicit_mask(options.window), options);
  } else {
    const at::Tensor& mask = context.mask(options.window);
    const std::optional<at::Tensor> given = mask.defined() ? std::optional(mask) : std::nullopt;
    const bool causal = !given && context.past() == 0;  // with a past and no mask, the only token attends to all
    mixed = at::scaled_dot_product_attention(query, key, value, given, options.dropout, causal, options.scale,
                                             query.size(1) != key.size(1));
  }
  mixed = mixed.transpose(1, 2);
  if (context.sequence() != nullptr) mixed = context.sequence()->exchange({mixed}).front();
  return mixed.flatten(2);
}

}  // namespace zeroshard
