#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "train/models/fields.h"

// Modules whose parameters have neither memory nor values at first. The code that uses the model decides where the
// values come from. Inputs and outputs have the shape [..., features].
namespace zeroshard {

// Computes y = x W^T + b like torch.nn.Linear. The module keeps W, [out, in], or with `transposed` W^T, [in, out], as
// GPT-2 does. With an adapter, it computes y = x W^T + b + scale * dropout(x) A^T B^T.
class Linear final : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, bool bias, bool transposed = false);
  at::Tensor forward(const at::Tensor& x) const;
  const at::Tensor& weight() const { return weight_; }
  void tie(const at::Tensor& weight);  // the module then uses this weight of another module
  int64_t in_features() const { return weight_.size(transposed_ ? 0 : 1); }
  int64_t out_features() const { return weight_.size(transposed_ ? 1 : 0); }
  bool transposed() const { return transposed_; }

  // Adds an adapter. May be called only once. The adapter has the parameters lora_A.weight [rank, in] and lora_B.weight
  // [out, rank].
  void adapt(int64_t rank, double scale, double dropout);
  bool adapted() const { return lora_a_ != nullptr; }
  double adapter_scale() const { return scale_; }

 private:
  bool transposed_;
  at::Tensor weight_, bias_;                 // bias_ is undefined if there is no bias
  std::shared_ptr<Linear> lora_a_, lora_b_;  // null: no adapter
  double scale_ = 0, dropout_ = 0;
};

class Embedding final : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t features);
  at::Tensor forward(const at::Tensor& ids) const;  // int64, [...]
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};

// Computes x / sqrt(mean(x^2) + eps) in fp32, and scales the result (Zhang and Sennrich 2019).
class RmsNorm final : public torch::nn::Module {
 public:
  enum class Scale {
    kWeight,         // multiplies by the weight, in the dtype of x
    kOnePlusWeight,  // multiplies by 1 + weight, in fp32
  };
  RmsNorm(int64_t features, double eps, Scale scale = Scale::kWeight);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  double eps_;
  Scale scale_;
  at::Tensor weight_;
};

class LayerNorm final : public torch::nn::Module {
 public:
  LayerNorm(int64_t features, double eps);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  double eps_;
  at::Tensor weight_, bias_;
};

// An elementwise activation function. read_activation() returns the one that the field `name` of config.json names, or
// the one with the name `fallback` if the field is not given. Throws ValueError for an unknown function.
using Activation = std::function<at::Tensor(const at::Tensor&)>;
Activation read_activation(Fields& fields, std::string_view name, const std::string& fallback);

}  // namespace zeroshard
