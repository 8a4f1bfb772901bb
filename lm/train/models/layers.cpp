#include "train/models/layers.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>

#include "device/detachable_storage.h"
#include "ops/row_ops.h"

namespace zeroshard {
namespace {

at::Tensor without_memory(at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty({0});
  const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(sizeof(float));
  tensor.set_(make_storage_without_memory(bytes, at::kCPU), 0, sizes);
  return tensor;
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool bias, bool transposed) : transposed_(transposed) {
  weight_ = register_parameter("weight", transposed ? without_memory({in, out}) : without_memory({out, in}));
  if (bias) bias_ = register_parameter("bias", without_memory({out}));
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  at::Tensor y = transposed_ ? at::matmul(x, weight_) : at::linear(x, weight_, bias_);
  if (transposed_ && bias_.defined()) y = y + bias_;
  if (!adapted()) return y;
  return y + lora_b_->forward(lora_a_->forward(at::dropout(x, dropout_, is_training()))) * scale_;
}

void Linear::adapt(int64_t rank, double scale, double dropout) {
  lora_a_ = register_module("lora_A", std::make_shared<Linear>(in_features(), rank, /*bias=*/false));
  lora_b_ = register_module("lora_B", std::make_shared<Linear>(rank, out_features(), /*bias=*/false));
  scale_ = scale;
  dropout_ = dropout;
}

void Linear::tie(const at::Tensor& weight) {
  weight_ = parameters_["weight"] = weight;
}

Embedding::Embedding(int64_t rows, int64_t features)
    : weight_(register_parameter("weight", without_memory({rows, features}))) {}

at::Tensor Embedding::forward(const at::Tensor& ids) const {
  return at::embedding(weight_, ids);
}

RmsNorm::RmsNorm(int64_t features, double eps, Scale scale)
    : eps_(eps), scale_(scale), weight_(register_parameter("weight", without_memory({features}))) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  const float offset = scale_ == Scale::kOnePlusWeight ? 1 : 0;
  if (fits_row_ops(x) && fits_row_ops(weight_)) return rms_norm(x, weight_, eps_, offset);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normal = wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps_);
  if (scale_ == Scale::kOnePlusWeight) return (normal * (1.0 + weight_.to(at::kFloat))).to(x.scalar_type());
  return weight_ * normal.to(x.scalar_type());
}

LayerNorm::LayerNorm(int64_t features, double eps)
    : eps_(eps),
      weight_(register_parameter("weight", without_memory({features}))),
      bias_(register_parameter("bias", without_memory({features}))) {}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  return at::layer_norm(x, weight_.sizes(), weight_, bias_, eps_);
}

Activation read_activation(Fields& fields, std::string_view field, const std::string& fallback) {
  const std::string name = fields.text(field, fallback);
  if (name == "silu" || name == "swish") return [](const at::Tensor& x) { return at::silu(x); };
  if (name == "relu") return [](const at::Tensor& x) { return at::relu(x); };
  if (name == "gelu") return [](const at::Tensor& x) { return at::gelu(x); };
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return [](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  fields.fail(field, "is not supported; these are: silu, swish, relu, gelu, gelu_new, gelu_pytorch_tanh");
}

}  // namespace zeroshard
