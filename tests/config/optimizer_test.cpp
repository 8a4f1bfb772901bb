#include "support.h"

namespace zeroshard {
namespace {

OptimizerConfig optimizer(const std::string& json) {
  return configuration("{\"optimizer\": " + json + "}").config.optimizer.value();
}

TEST(Optimizer, TypesAreFoundWithoutCase) {
  using Type = OptimizerConfig::Type;
  for (const auto& [name, type] :
       {std::pair{"Adam", Type::kAdam}, std::pair{"ADAMW", Type::kAdamW}, std::pair{"sgd", Type::kSgd},
        std::pair{"Lion", Type::kLion}, std::pair{"adagrad", Type::kAdagrad}, std::pair{"MUON", Type::kMuon}}) {
    EXPECT_EQ(optimizer(std::string("{\"type\": \"") + name + "\"}").type, type);
  }
}

TEST(Optimizer, DefaultsPerType) {
  const OptimizerConfig adam = optimizer(R"({"type": "Adam"})");
  EXPECT_TRUE(adam.decoupled_weight_decay) << "Adam is AdamW unless asked otherwise";
  EXPECT_EQ(adam.lr, 1e-3);
  EXPECT_EQ(adam.eps, 1e-8);
  EXPECT_EQ(adam.weight_decay, 0);
  const OptimizerConfig lion = optimizer(R"({"type": "Lion"})");
  EXPECT_EQ(lion.lr, 1e-3);
  EXPECT_EQ(lion.beta2, 0.999) << "DeepSpeed's; the paper has 0.99";
  const OptimizerConfig adagrad = optimizer(R"({"type": "Adagrad"})");
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
}

// DeepSpeed's: one rate for both kinds of parameters, unless either has its own.
TEST(Optimizer, MuonHasSettingsOfMatricesAndOfOthers) {
  const auto rates = [](const std::string& params) {
    const OptimizerConfig muon = optimizer(R"({"type": "Muon", "params": {)" + params + "}}");
    return std::pair{muon.of_matrices().lr, muon.of_others().lr};
  };
  EXPECT_EQ(rates(""), (std::pair{0.02, 3e-4}));
  EXPECT_EQ(rates(R"("lr": 0.5)"), (std::pair{0.5, 0.5}));
  EXPECT_EQ(rates(R"("adam_lr": 0.1, "lr": 0.5)"), (std::pair{0.5, 0.1}));
  EXPECT_EQ(rates(R"("muon_lr": 0.1)"), (std::pair{0.1, 3e-4}));
  const OptimizerConfig muon = optimizer(R"({"type": "Muon", "params": {"weight_decay": 0.1, "betas": [0.8, 0.9]}})");
  EXPECT_TRUE(muon.of_matrices().use_muon && muon.of_matrices().ns_gram && muon.of_matrices().nesterov);
  EXPECT_EQ(muon.of_matrices().momentum, 0.95);
  EXPECT_EQ(muon.of_matrices().eps, 1e-7);
  EXPECT_FALSE(muon.of_others().use_muon || muon.of_others().nesterov);
  EXPECT_EQ(muon.of_others().eps, 1e-10);
  EXPECT_EQ(muon.of_others().beta1, 0.8);
  EXPECT_EQ(muon.of_others().weight_decay, 0.1);
  EXPECT_FALSE(optimizer(R"({"type": "Muon", "params": {"ns_method": "standard"}})").of_matrices().ns_gram);
}

TEST(Optimizer, Params) {
  const OptimizerConfig adam = optimizer(R"({"type": "Adam", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-6,
      "weight_decay": 0.1, "bias_correction": false, "adam_w_mode": false}})");
  EXPECT_EQ(adam.lr, 3e-4);
  EXPECT_EQ(adam.beta1, 0.8);
  EXPECT_EQ(adam.beta2, 0.95);
  EXPECT_EQ(adam.eps, 1e-6);
  EXPECT_EQ(adam.weight_decay, 0.1);
  EXPECT_FALSE(adam.bias_correction);
  EXPECT_FALSE(adam.decoupled_weight_decay);
  const OptimizerConfig sgd =
      optimizer(R"({"type": "SGD", "params": {"lr": 1, "momentum": 0.9, "nesterov": true, "weight_decay": 1e-4}})");
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_TRUE(sgd.nesterov);
  EXPECT_EQ(optimizer(R"({"type": "Adagrad", "params": {"lr_decay": 0.5}})").lr_decay, 0.5);
}

TEST(Optimizer, Errors) {
  const auto fails = [](const std::string& json, const std::vector<std::string>& parts) {
    expect_error("{\"optimizer\": " + json + "}", parts);
  };
  fails(R"({"type": "Lamb", "params": {"max_coeff": 3}})",
        {"optimizer.type = \"Lamb\"", "not supported", "Adam, AdamW, SGD, Lion, Adagrad, Muon"});
  fails(R"({"type": "OneBitAdam"})", {"OneBitAdam", "not supported"});
  fails(R"({"type": "AdmaW"})", {"optimizer.type = \"AdmaW\"", "did you mean 'AdamW'?"});
  fails(R"({"params": {"lr": 1}})", {"optimizer.type", "required"});
  fails(R"({"type": "AdamW", "params": {"learning_rate": 1}})",
        {"optimizer.params.learning_rate = 1", "unknown key", "lr, weight_decay, betas"});
  fails(R"({"type": "AdamW", "params": {"momentum": 0.9}})", {"optimizer.params.momentum", "unknown key"});
  fails(R"({"type": "AdamW", "params": {"weight_decai": 0}})", {"did you mean 'optimizer.params.weight_decay'?"});
  fails(R"({"type": "AdamW", "params": {"betas": [0.9]}})", {"optimizer.params.betas = [0.9]", "two numbers"});
  fails(R"({"type": "AdamW", "params": {"betas": [0.9, 1]}})", {"optimizer.params.betas"});
  fails(R"({"type": "AdamW", "params": {"lr": -1}})", {"optimizer.params.lr = -1"});
  fails(R"({"type": "AdamW", "params": {"amsgrad": true}})", {"optimizer.params.amsgrad = true", "not supported"});
  fails(R"({"type": "SGD", "params": {"nesterov": true}})", {"optimizer.params.nesterov", "momentum"});
  fails(R"({"type": "Muon", "params": {"ns_method": "grams"}})",
        {"optimizer.params.ns_method = \"grams\"", "gram", "standard"});
  fails(R"({"type": "Muon", "params": {"per_head_muon": true}})", {"optimizer.params.per_head_muon", "not supported"});
  fails(R"({"type": "Muon", "params": {"momentum": 1}})", {"optimizer.params.momentum = 1"});
  fails(R"({"type": 3})", {"optimizer.type = 3"});
}

TEST(Optimizer, ParamsWithoutEffectAreNamed) {
  const ParsedConfig parsed =
      configuration(R"({"optimizer": {"type": "AdamW", "params": {"torch_adam": true, "max_grad_norm": 1}}})");
  EXPECT_THAT(parsed.without_effect,
              ::testing::UnorderedElementsAre(::testing::StartsWith("optimizer.params.torch_adam"),
                                              ::testing::StartsWith("optimizer.params.max_grad_norm")));
}

template <typename Schedule>
Schedule scheduler(const std::string& json) {
  return std::get<Schedule>(configuration("{\"scheduler\": " + json + "}").config.scheduler.value());
}

TEST(Scheduler, Kinds) {
  const auto warmup = scheduler<WarmupLRConfig>(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})");
  EXPECT_EQ(warmup.warmup_max_lr, 0.5);
  EXPECT_EQ(warmup.warmup_num_steps, 1000);
  EXPECT_TRUE(warmup.log_warmup);
  const auto decay = scheduler<WarmupDecayLRConfig>(
      R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 50, "warmup_type": "linear"}})");
  EXPECT_EQ(decay.total_num_steps, 50);
  EXPECT_EQ(decay.warmup_max_lr, 1e-3);
  EXPECT_FALSE(decay.log_warmup);
  const auto cosine =
      scheduler<WarmupCosineLRConfig>(R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 50}})");
  EXPECT_EQ(cosine.cos_min_ratio, 1e-4);
  const auto cycle = scheduler<OneCycleConfig>(
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_second_step_size": 7}})");
  EXPECT_EQ(cycle.cycle_second_step_size, 7);
  EXPECT_EQ(cycle.cycle_first_step_size, 2000);
  EXPECT_FALSE(cycle.cycle_second_stair_count);
  const auto test =
      scheduler<LRRangeTestConfig>(R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": 5}})");
  const auto lists = scheduler<OneCycleConfig>(
      R"({"type": "OneCycle", "params": {"cycle_min_lr": [1, 2.5], "cycle_max_lr": 3, "cycle_second_step_size": 0}})");
  EXPECT_EQ(lists.cycle_min_lr, PerGroup(std::vector{1.0, 2.5}));
  EXPECT_EQ(lists.cycle_max_lr.of(1), 3);
  EXPECT_EQ(lists.cycle_second_step_size, 0);
  EXPECT_EQ(test.step_size, 5);
  EXPECT_EQ(test.min_lr, 1e-3);
}

TEST(Scheduler, Errors) {
  const auto fails = [](const std::string& json, const std::vector<std::string>& parts) {
    expect_error("{\"scheduler\": " + json + "}", parts);
  };
  fails(R"({"type": "CosineLR"})", {"scheduler.type = \"CosineLR\"", "WarmupLR, WarmupDecayLR"});
  fails(R"({"type": "WarmupDecayLR"})", {"scheduler.params.total_num_steps", "required"});
  fails(R"({"type": "OneCycle", "params": {"cycle_min_lr": 0}})", {"scheduler.params.cycle_max_lr", "required"});
  fails(R"({"type": "WarmupLR", "params": {"warmup_steps": 3}})",
        {"scheduler.params.warmup_steps = 3", "allowed here: warmup_min_lr"});
  fails(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 0}})", {"warmup_num_steps = 0"});
  fails(R"({"type": "WarmupLR", "params": {"warmup_max_lr": [1, -2]}})",
        {"warmup_max_lr = [1,-2]", "or a list with one for each param group"});
  fails(R"({"type": "WarmupLR", "params": {"warmup_max_lr": []}})", {"warmup_max_lr = []"});
  fails(R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 5, "cos_min_ratio": [1, 2]}})", {"cos_min_ratio"});
  fails(R"({"params": {}, "type": null, "params ": 1})", {"scheduler.params "});
}

}  // namespace
}  // namespace zeroshard
