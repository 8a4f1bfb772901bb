#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/container/modulelist.h>

#include "base/format.h"
#include "train/models/decoder.h"
#include "train/models/models.h"

namespace zeroshard {
namespace {

constexpr int64_t kMostExperts = int64_t{1} << 18;  // limit for the experts of all layers together

// Computes down(act(gate(x)) * up(x)). The names of the parameters are those in Mixtral's files.
class Expert final : public torch::nn::Module {
 public:
  explicit Expert(const DecoderOptions& options) : activation_(options.activation) {
    gate_ = register_module("w1", std::make_shared<Linear>(options.hidden_size, options.intermediate_size, false));
    down_ = register_module("w2", std::make_shared<Linear>(options.intermediate_size, options.hidden_size, false));
    up_ = register_module("w3", std::make_shared<Linear>(options.hidden_size, options.intermediate_size, false));
  }

  at::Tensor forward(const at::Tensor& x) const {
    return down_->forward(activation_(gate_->forward(x)) * up_->forward(x));
  }

 private:
  Activation activation_;
  std::shared_ptr<Linear> gate_, down_, up_;
};

// The router chooses several experts for each token. A choice is a token together with one expert that was chosen for
// it. `experts` has the index of the expert for each choice. Returns, for each of `count` experts, the ascending
// indices of the choices of this expert. If `experts` is on a device, the host waits for the device once, because only
// the device knows how often each expert was chosen.
std::vector<at::Tensor> choices_by_expert(const at::Tensor& experts, int64_t count) {
  std::vector<at::Tensor> choices;
  if (experts.is_cpu()) {
    for (int64_t i = 0; i < count; ++i) choices.push_back(experts.eq(i).nonzero().select(1, 0));
    return choices;
  }
  const at::Tensor sorted = experts.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor each = at::arange(count, experts.options());
  const at::Tensor numbers = experts.unsqueeze(1).eq(each).sum(0).to(at::kCPU);
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = numbers.const_data_ptr<int64_t>()[i];
    choices.push_back(sorted.narrow(0, begin, number));
    begin += number;
  }
  return choices;
}

// Sends each token through the `chosen` experts to which the router gives the largest shares. The result is the sum of
// the experts' results, weighted by these shares, which are first divided by their sum (Jiang et al. 2024).
class Experts final : public FeedForward {
 public:
  Experts(const DecoderOptions& options, int64_t count, int64_t chosen) : chosen_(chosen) {
    router_ = register_module("gate", std::make_shared<Linear>(options.hidden_size, count, false));
    experts_ = register_module("experts", torch::nn::ModuleList());
    for (int64_t i = 0; i < count; ++i) experts_->push_back(std::make_shared<Expert>(options));
  }

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor tokens = x.flatten(0, -2);
    const at::Tensor all = at::softmax(router_->forward(tokens), -1, at::kFloat);
    auto [shares, indices] = at::topk(all, chosen_, -1);
    shares = shares / shares.sum(-1, /*keepdim=*/true);
    at::Tensor sum = at::zeros_like(tokens);
    const std::vector<at::Tensor> choices =
        choices_by_expert(indices.flatten(), static_cast<int64_t>(experts_->size()));
    shares = shares.flatten();
    for (size_t i = 0; i < experts_->size(); ++i) {
      // An expert without choices still runs, on no tokens, so that its parameters have gradients (of zero) on every
      // rank alike.
      const at::Tensor token = choices[i].floor_divide(chosen_);
      const at::Tensor share = at::index_select(shares, 0, choices[i]).unsqueeze(-1);
      const at::Tensor output = experts_->ptr<Expert>(i)->forward(at::index_select(tokens, 0, token));
      sum = sum.index_add(0, token, (output * share).to(sum.scalar_type()));
    }
    return sum.view_as(x);
  }

 private:
  int64_t chosen_;
  std::shared_ptr<Linear> router_;
  torch::nn::ModuleList experts_ = nullptr;
};

}  // namespace

std::shared_ptr<CausalLM> make_mixtral(Fields& fields) {
  DecoderDefaults defaults;
  defaults.norm_eps = 1e-5;
  defaults.num_kv_heads = 8;
  defaults.rope_theta = 1e6;
  DecoderOptions options = read_decoder_options(fields, defaults);
  options.windows.assign(options.windows.size(), read_window(fields));
  const int64_t count = fields.size("num_local_experts", 8, kMostExperts);
  const int64_t chosen = fields.positive("num_experts_per_tok", 2);
  if (count * options.num_layers > kMostExperts)
    fields.fail("num_local_experts", concat("times num_hidden_layers must be at most ", kMostExperts));
  if (chosen > count) fields.fail("num_experts_per_tok", "must not be greater than num_local_experts");
  fields.require("router_jitter_noise", 0.0);
  fields.require("output_router_logits", false);  // true would add a loss that balances the experts
  fields.ignore({"router_aux_loss_coef"});
  options.feed_forward_name = "block_sparse_moe";
  options.make_feed_forward = [=](const DecoderOptions& all) -> std::shared_ptr<FeedForward> {
    return std::make_shared<Experts>(all, count, chosen);
  };
  return make_decoder(std::move(options));
}

}  // namespace zeroshard
