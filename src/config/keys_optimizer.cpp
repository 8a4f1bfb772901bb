#include <array>

#include "config/keys.h"

namespace zeroshard {
namespace {

using Type = OptimizerConfig::Type;

constexpr std::array<std::string_view, 6> kOptimizerNames{"Adam", "AdamW", "SGD", "Lion", "Adagrad", "Muon"};
constexpr std::array<std::string_view, 7> kUnsupported{"Lamb",   "OneBitAdam", "OneBitLamb", "ZeroOneAdam",
                                                       "MuAdam", "MuAdamW",    "MuSGD"};

template <auto Member>
Key optimizer_param(const char* name, Allowed allowed, Json default_value, const char* help) {
  Key key{std::string("optimizer.params.") + name, std::move(allowed), std::move(default_value), help};
  key.apply = [](Config& config, const Json& value) {
    OptimizerConfig& optimizer = *config.optimizer;
    optimizer.*Member = value.get<std::remove_cvref_t<decltype(optimizer.*Member)>>();
  };
  return key;
}

Key betas(double beta1, double beta2) {
  Key key{"optimizer.params.betas", Betas{}, Json::array({beta1, beta2}), "decay of the two moments"};
  key.apply = [](Config& config, const Json& value) {
    config.optimizer->beta1 = value.at(0).get<double>();
    config.optimizer->beta2 = value.at(1).get<double>();
  };
  return key;
}

Key no_effect(const char* name, const char* why) {
  return inert(std::string("optimizer.params.") + name, Anything{}, nullptr, why);
}

Key must_be(const char* name, Json neutral, const char* what) {
  return unsupported(std::string("optimizer.params.") + name, Only{neutral}, neutral, what);
}

void add_adam(std::vector<Key>& keys, Type type) {
  keys.push_back(betas(0.9, 0.999));
  keys.push_back(
      optimizer_param<&OptimizerConfig::eps>("eps", Number{.min = 0}, 1e-8, "added to the root of the second moment"));
  keys.push_back(
      optimizer_param<&OptimizerConfig::bias_correction>("bias_correction", Bool{}, true, "correct the moments' bias"));
  if (type == Type::kAdam) {
    keys.push_back(optimizer_param<&OptimizerConfig::decoupled_weight_decay>("adam_w_mode", Bool{}, true,
                                                                             "decouple weight decay, as AdamW does"));
  } else {
    keys.push_back(no_effect("adam_w_mode", "AdamW always decouples weight decay"));
  }
  keys.push_back(must_be("amsgrad", false, "AMSGrad is not supported"));
  keys.push_back(no_effect("torch_adam", "there is one implementation of Adam"));
}

void add_sgd(std::vector<Key>& keys) {
  keys.push_back(
      optimizer_param<&OptimizerConfig::momentum>("momentum", Number{.min = 0}, 0.0, "decay of the velocity"));
  keys.push_back(optimizer_param<&OptimizerConfig::dampening>("dampening", Number{}, 0.0, "dampening of the momentum"));
  keys.push_back(optimizer_param<&OptimizerConfig::nesterov>("nesterov", Bool{}, false, "Nesterov's momentum"));
}

void add_adagrad(std::vector<Key>& keys) {
  keys.push_back(
      optimizer_param<&OptimizerConfig::lr_decay>("lr_decay", Number{.min = 0}, 0.0, "decay of the learning rate"));
  keys.push_back(
      optimizer_param<&OptimizerConfig::eps>("eps", Number{.min = 0}, 1e-10, "added to the root of the sum"));
  keys.push_back(must_be("amsgrad", false, "AMSGrad is not supported"));
  keys.push_back(must_be("initial_accumulator_value", 0, "a start value of the sum is not supported"));
}

Key rate(const char* name, const char* help, Key::Apply apply) {
  Key key{std::string("optimizer.params.") + name, Number{.min = 0}, nullptr, help};
  key.apply = std::move(apply);
  return key;
}

// Adds DeepSpeed's keys for Muon, with DeepSpeed's defaults. "lr" is the learning rate of all parameters, but muon_lr
// overrides it for matrices, and adam_lr for other parameters.
void add_muon(std::vector<Key>& keys) {
  keys.push_back(rate("lr", "learning rate; unset: 0.02 of matrices, 3e-4 of other parameters",
                      [](Config& config, const Json& value) {
                        config.optimizer->lr = config.optimizer->adam_lr = value.get<double>();
                      }));
  keys.push_back(rate("muon_lr", "learning rate of matrices; unset: lr",
                      [](Config& config, const Json& value) { config.optimizer->lr = value.get<double>(); }));
  keys.push_back(rate("adam_lr", "learning rate of what is no matrix, which AdamW updates; unset: lr",
                      [](Config& config, const Json& value) { config.optimizer->adam_lr = value.get<double>(); }));
  keys.push_back(optimizer_param<&OptimizerConfig::momentum>("momentum", Number{.min = 0, .max = 1, .below_max = true},
                                                             0.95, "decay of the momentum of matrices"));
  keys.push_back(
      optimizer_param<&OptimizerConfig::nesterov>("nesterov", Bool{}, true, "Nesterov's momentum of matrices"));
  Key method{"optimizer.params.ns_method", Choice{{"gram", "standard"}}, "gram",
             "how matrices are orthogonalised: with products of their smaller side alone, or as torch.optim.Muon does"};
  method.apply = [](Config& config, const Json& value) { config.optimizer->ns_gram = value == "gram"; };
  keys.push_back(std::move(method));
  keys.push_back(betas(0.9, 0.95));
  keys.push_back(optimizer_param<&OptimizerConfig::eps>("eps", Number{.min = 0}, 1e-10,
                                                        "added to the root of AdamW's second moment"));
  keys.push_back(must_be("adam_w_mode", true, "Adam without decoupled weight decay is not supported beside Muon"));
  keys.push_back(
      must_be("per_head_muon", false, "to orthogonalise the heads of attention one by one is not supported"));
  keys.push_back(no_effect("torch_adam", "there is one implementation of Adam"));
}

}  // namespace

ParamGroupOptions OptimizerConfig::of_matrices() const {
  ParamGroupOptions options = *this;
  options.use_muon = true;
  options.eps = 1e-7;  // keeps the norm by which a matrix is divided above 0
  return options;
}

ParamGroupOptions OptimizerConfig::of_others() const {
  ParamGroupOptions options = *this;
  options.lr = adam_lr;
  options.momentum = 0;
  options.nesterov = options.ns_gram = false;
  return options;
}

std::span<const std::string_view> optimizer_names() {
  return kOptimizerNames;
}
std::span<const std::string_view> unsupported_optimizer_names() {
  return kUnsupported;
}

std::vector<Key> optimizer_keys(Type type) {
  std::vector<Key> keys;
  const double lr = type == Type::kAdagrad ? 1e-2 : 1e-3;
  if (type != Type::kMuon) {
    keys.push_back(optimizer_param<&OptimizerConfig::lr>("lr", Number{.min = 0}, lr, "learning rate"));
    keys.back().when_auto = Auto::kDefaultTold;
  }
  keys.push_back(
      optimizer_param<&OptimizerConfig::weight_decay>("weight_decay", Number{.min = 0}, 0.0, "weight decay"));
  switch (type) {
    case Type::kAdam:
    case Type::kAdamW:
      add_adam(keys, type);
      break;
    case Type::kSgd:
      add_sgd(keys);
      break;
    case Type::kLion:
      keys.push_back(betas(0.9, 0.999));
      break;
    case Type::kAdagrad:
      add_adagrad(keys);
      break;
    case Type::kMuon:
      add_muon(keys);
      break;
  }
  keys.push_back(must_be("maximize", false, "maximizing is not supported"));
  keys.push_back(no_effect("max_grad_norm", "gradient_clipping sets the largest norm"));
  for (const char* name : {"fused", "foreach", "set_grad_none", "fp32_optimizer_states"}) {
    keys.push_back(no_effect(name, "every optimizer is one pass over fp32 shards"));
  }
  return keys;
}

}  // namespace zeroshard
