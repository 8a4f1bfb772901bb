#include "train/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace zeroshard {

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), generator_(at::detail::createCPUGenerator(options.seed)) {
  ZS_CHECK(options.temperature >= 0 && std::isfinite(options.temperature), "temperature is ", options.temperature,
           "; it must be at least 0");
  ZS_CHECK(options.top_k >= 0, "top_k is ", options.top_k, "; it must be at least 0");
  ZS_CHECK(options.top_p > 0 && options.top_p <= 1, "top_p is ", options.top_p, "; it must be in (0, 1]");
}

// Applies temperature, top-k and top-p (Holtzman et al. 2020) one after the other, as transformers does.
int32_t Sampler::choose(const at::Tensor& logits) {
  if (options_.temperature == 0) return static_cast<int32_t>(logits.argmax().item<int64_t>());
  const int64_t all = logits.numel();
  const int64_t kept = options_.top_k > 0 ? std::min(options_.top_k, all) : all;
  const auto [values, ids] = at::topk(logits, kept, 0, /*largest=*/true, /*sorted=*/true);
  // Subtracts the largest logit before it divides, because logits divided by a small temperature could be infinite.
  // Divides in fp64, because a small temperature could be 0 in fp32.
  const at::Tensor below = (values - values[0]).to(at::kDouble) / options_.temperature;
  const at::Tensor shares = at::softmax(below.to(at::kFloat), 0);
  if (options_.top_p < 1) {
    // Keeps a token if the shares of all more likely tokens add up to less than top_p. So the first token is always
    // kept, however small top_p is.
    const at::Tensor before = shares.cumsum(0) - shares;
    shares.slice(0, 1).masked_fill_(before.slice(0, 1).ge(options_.top_p), 0);
  }
  const int64_t place = at::multinomial(shares, 1, /*replacement=*/false, generator_).item<int64_t>();
  return static_cast<int32_t>(ids[place].item<int64_t>());
}

}  // namespace zeroshard
