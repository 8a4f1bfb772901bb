#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

#include "zeroshard/causal_lm.h"

namespace zeroshard {

struct AttentionOptions {
  double scale = 1;
  double softcap = 0;  // scores become softcap * tanh(score / softcap); 0: they do not
  int64_t window = 0;  // tokens that a token sees, itself among them; 0: all before it
  double dropout = 0;  // of the probabilities, now
};

// Who sees whom in a batch: one mask per window, made when first asked for.
class AttentionMasks {
 public:
  explicit AttentionMasks(TokenBatch batch) : batch_(std::move(batch)) {}

  // Bool, [batch or 1, 1, length, length]: true where the row's token sees the column's. Undefined when all that come
  // before are seen.
  const at::Tensor& of(int64_t window);
  // Never undefined.
  const at::Tensor& explicit_of(int64_t window);

 private:
  int64_t effective(int64_t window) const;

  TokenBatch batch_;
  std::map<int64_t, at::Tensor> masks_;  // by window
};

// query: [batch, heads, length, head_dim]; key and value: [batch, kv_heads, length, head_dim], where kv_heads divides
// heads. Returns [batch, length, heads * head_dim].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, AttentionMasks& masks,
                  const AttentionOptions& options);

}  // namespace zeroshard
