#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

#include "zeroshard/causal_lm.h"

namespace zeroshard {

struct AttentionOptions {
  double scale = 1;
  double softcap = 0;  // scores become softcap * tanh(score / softcap); 0: unchanged
  int64_t window = 0;  // tokens that a token sees, itself included; 0: all before it
  double dropout = 0;  // of the probabilities; 0 outside of training
  int64_t layer = 0;   // index of the layer, for the cache
};

// State shared by the attention layers of one forward pass: the masks, one per window, made when first needed; and the
// keys and values of earlier tokens.
class AttentionContext {
 public:
  // `cache` may be null.
  AttentionContext(TokenBatch batch, KvCache* cache)
      : batch_(std::move(batch)), cache_(cache), past_(cache ? cache->length() : 0) {}

  // Tokens before the batch's tokens: a mask has columns for these first, then for the batch's.
  int64_t past() const { return past_; }
  KvCache* cache() const { return cache_; }
  const SequenceGroup* sequence() const { return batch_.sequence.get(); }

  // Bool, [batch or 1, 1, length, past + length], with the length of whole rows: true if the row's token sees the
  // column's. Undefined if each token sees all tokens before it.
  const at::Tensor& mask(int64_t window);
  // Never undefined.
  const at::Tensor& explicit_mask(int64_t window);

 private:
  int64_t effective(int64_t window) const;

  TokenBatch batch_;
  KvCache* cache_;
  int64_t past_;
  std::map<int64_t, at::Tensor> masks_;  // by window
};

// query: [batch, heads, length, head_dim]; key and value: [batch, kv_heads, length, head_dim], where kv_heads divides
// heads. Returns [batch, length, heads * head_dim]. Where ranks share rows, `length` is that of this rank's piece, and
// the ranks exchange heads: each attends over whole rows with an equal part of the heads.
at::Tensor attend(at::Tensor query, at::Tensor key, at::Tensor value, AttentionContext& context,
                  const AttentionOptions& options);

}  // namespace zeroshard
