#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

#include "zeroshard/causal_lm.h"

namespace zeroshard {

struct AttentionOptions {
  double scale = 1;
  double softcap = 0;  // if not 0, scores become softcap * tanh(score / softcap)
  int64_t window = 0;  // number of tokens to which a token attends, including itself; 0: no limit
  double dropout = 0;  // dropout of the attention probabilities; 0 outside of training
  int64_t layer = 0;   // index of the layer, for the cache
};

// State that the attention layers of one forward pass share: the masks, and the keys and values of earlier tokens.
// There is one mask for each size of window. A mask is made when it is first needed.
class AttentionContext {
 public:
  // `cache` may be null.
  AttentionContext(TokenBatch batch, KvCache* cache)
      : batch_(std::move(batch)), cache_(cache), past_(cache ? cache->length() : 0) {}

  // Returns the number of tokens in the cache, which come before the batch's tokens. A mask has columns for these
  // earlier tokens first, then for the batch's tokens.
  int64_t past() const { return past_; }
  KvCache* cache() const { return cache_; }
  const SequenceGroup* sequence() const { return batch_.sequence.get(); }

  // Returns a mask of bool, [batch or 1, 1, length, past + length], where `length` is the length of whole rows and
  // `past` is past(). The element at [.., i, j] is true if token i of the batch's row attends to token j, where j
  // counts from the first token in the cache. Returns an undefined tensor if attend() needs no mask. It needs none if
  // each token attends to itself and to all earlier tokens, and either past() is 0 or each row of the batch has only
  // one token.
  const at::Tensor& mask(int64_t window);
  // Returns the same mask as mask(), but a defined one in every case.
  const at::Tensor& explicit_mask(int64_t window);

 private:
  int64_t effective(int64_t window) const;

  TokenBatch batch_;
  KvCache* cache_;
  int64_t past_;
  std::map<int64_t, at::Tensor> masks_;  // by window
};

// Computes attention. query: [batch, heads, length, head_dim]; key and value: [batch, kv_heads, length, head_dim],
// where kv_heads divides heads. Appends key and value to the context's cache, if it has one, and attends to all tokens
// in the cache. Returns [batch, length, heads * head_dim]. If ranks share rows, `length` is the length of this rank's
// piece of the rows. The ranks then exchange data, so that each rank computes an equal part of the heads over whole
// rows.
at::Tensor attend(at::Tensor query, at::Tensor key, at::Tensor value, AttentionContext& context,
                  const AttentionOptions& options);

}  // namespace zeroshard
