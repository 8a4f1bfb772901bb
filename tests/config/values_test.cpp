#include "base/format.h"
#include "support.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// As transformers' Trainer passes it, written by Python's json module.
constexpr const char* kFromTransformers =
    R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0, "bf16": {"enabled": false}, "fp16": {"enabled": false},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 4096, "stage3_prefetch_bucket_size": 3686,
                              "stage3_param_persistence_threshold": 640,
                              "stage3_gather_16bit_weights_on_model_save": true},
        "steps_per_print": Infinity, "zero_allow_untested_optimizer": true})";

TEST(Config, AmountsOfMemoryAreBytes) {
  const auto limit = [](const std::string& value) {
    return configuration(concat(R"({"zeroshard": {"offload": {"device_memory": )", value, "}}}"))
        .config.offload.device_memory;
  };
  EXPECT_FALSE(limit("null"));
  EXPECT_EQ(limit(R"("8GiB")"), int64_t{8} << 30);
  EXPECT_EQ(limit(R"("1.5 kb")"), 1500);
  EXPECT_EQ(limit("2e9"), 2'000'000'000);
  EXPECT_EQ(limit("12"), 12);
  EXPECT_NE(configuration(R"({"zeroshard": {"offload": {"host_memory": 5}}})").config.digest(),
            configuration("{}").config.digest());
}

TEST(Config, RequestsToFilesAreAsGiven) {
  const ParsedConfig parsed = configuration(R"({"aio": {"block_size": 8192, "queue_depth": 3, "thread_count": 2,
      "single_submit": true, "overlap_events": false, "use_gds": false}, "zeroshard": {"offload": {"verify": false}}})");
  EXPECT_EQ(parsed.config.aio.block_size, 8192);
  EXPECT_EQ(parsed.config.aio.queue_depth, 3);
  EXPECT_EQ(parsed.config.aio.thread_count, 2);
  EXPECT_FALSE(parsed.config.offload.verify);
  EXPECT_THAT(parsed.without_effect,
              ::testing::UnorderedElementsAre(::testing::HasSubstr("aio.single_submit = true"),
                                              ::testing::HasSubstr("aio.overlap_events = false")));
  EXPECT_EQ(configuration(R"({"aio": {"intra_op_parallelism": 7}})").config.aio.thread_count, 7);
  EXPECT_FALSE(configuration("{}").config.aio.block_size);
}

TEST(Config, TransformersDump) {
  const ParsedConfig parsed = parse_config(kFromTransformers, ranks(2));
  const Config& config = parsed.config;
  EXPECT_EQ(config.train_batch_size, 16);
  EXPECT_EQ(config.grad_accumulation_steps, 2);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.compute_dtype, DType::kFloat32);
  EXPECT_EQ(config.stage, 3);
  EXPECT_EQ(config.prefetch_numel, 3686);
  EXPECT_EQ(config.persistence_threshold, 640);
  EXPECT_TRUE(config.gather_16bit_weights_on_save);
  EXPECT_TRUE(config.allow_untested_optimizer);
  EXPECT_EQ(config.steps_per_print, 0);
  EXPECT_FALSE(config.optimizer);
  EXPECT_FALSE(config.scheduler);
  EXPECT_THAT(parsed.without_effect, ElementsAre(StartsWith("zero_optimization.reduce_bucket_size = 4096")));
}

TEST(Config, AccelerateDumpWithoutOffload) {
  const ParsedConfig parsed = configuration(R"({"train_micro_batch_size_per_gpu": 1,
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none", "nvme_path": null},
                            "offload_param": {"device": "none", "nvme_path": null}}})");
  EXPECT_EQ(parsed.config.stage, 2);
  EXPECT_TRUE(parsed.without_effect.empty());
}

using OffloadDevice = OffloadOptimizerConfig::Device;

TEST(Config, OffloadOfTheOptimizer) {
  const ParsedConfig parsed = configuration(R"({"zero_optimization": {"stage": 2, "offload_optimizer":
      {"device": "CPU", "nvme_path": null, "pin_memory": false, "ratio": 0.3, "buffer_count": 7}}})");
  const OffloadOptimizerConfig& offload = parsed.config.offload_optimizer;
  EXPECT_EQ(offload.device, OffloadDevice::kCpu);
  EXPECT_EQ(offload.ratio, 0.3);
  EXPECT_EQ(offload.buffer_count, 7);
  EXPECT_FALSE(offload.pin_memory);
  EXPECT_THAT(parsed.without_effect, IsEmpty());
  EXPECT_NE(parsed.config.digest(), configuration(R"({"zero_optimization": {"stage": 2}})").config.digest());
  const auto device_of = [](const std::string& json) { return configuration(json).config.offload_optimizer.device; };
  EXPECT_EQ(device_of(R"({"zero_optimization": {"stage": 1, "cpu_offload": true}})"), OffloadDevice::kCpu);
  EXPECT_EQ(device_of(R"({"zero_optimization": {"cpu_offload": false}})"), OffloadDevice::kNone);
  EXPECT_EQ(device_of(R"({"zero_optimization": {"offload_optimizer": {"device": "none", "nvme_path": "/n"}}})"),
            OffloadDevice::kNone);
  for (const auto& [paths, expected] :
       {std::pair{R"("/a")", std::vector<std::string>{"/a"}}, {R"(["/a", "/b"])", {"/a", "/b"}}}) {
    const Config config = configuration(concat(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device":
        "nvme", "nvme_path": )",
                                               paths, "}}}"))
                              .config;
    EXPECT_EQ(config.offload_optimizer.device, OffloadDevice::kNvme);
    EXPECT_EQ(config.offload_optimizer.nvme_path, expected);
  }
}

using ParamDevice = OffloadParamConfig::Device;

TEST(Config, OffloadOfParametersToFiles) {
  const auto offload = [](const std::string& keys) {
    return configuration(concat(R"({"zero_optimization": {"stage": 3, "cpu_offload_param": true, "offload_param":
        {"device": "nvme", "nvme_path": ["/a", "/b"])",
                                keys, "}}}"))
        .config;
  };
  const OffloadParamConfig usual = offload("").offload_param;
  EXPECT_EQ(usual.device, ParamDevice::kNvme);
  EXPECT_EQ(usual.nvme_path, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(usual.buffer_count, 5);
  EXPECT_EQ(usual.buffer_numel, 100'000'000);
  EXPECT_EQ(usual.max_in_memory, 1'000'000'000);
  const Config set = offload(R"(, "buffer_count": 2, "buffer_size": 1e6, "max_in_cpu": 0)");
  EXPECT_EQ(set.offload_param.buffer_count, 2);
  EXPECT_EQ(set.offload_param.buffer_numel, 1'000'000);
  EXPECT_EQ(set.offload_param.max_in_memory, 0);
  // What decides where parameters lie must be the same on all ranks.
  EXPECT_NE(set.digest(), offload("").digest());
  EXPECT_EQ(offload(R"(, "buffer_count": 2)").digest(), offload("").digest());
}

TEST(Config, OffloadOfParameters) {
  const ParsedConfig parsed = configuration(R"({"zero_optimization": {"stage": 3, "offload_param":
      {"device": "cpu"}, "offload_optimizer": {"device": "none"}}})");
  EXPECT_EQ(parsed.config.offload_param.device, ParamDevice::kCpu);
  EXPECT_TRUE(parsed.config.offload_param.pin_memory);
  EXPECT_EQ(parsed.config.offload_optimizer.device, OffloadDevice::kNone);
  EXPECT_THAT(parsed.without_effect, IsEmpty());
  EXPECT_NE(parsed.config.digest(), configuration(R"({"zero_optimization": {"stage": 3}})").config.digest());
  const auto goes = [](const std::string& json) {
    return configuration(json).config.offload_param.device == ParamDevice::kCpu;
  };
  EXPECT_TRUE(goes(R"({"zero_optimization": {"stage": 3, "cpu_offload_param": true}})"));
  EXPECT_FALSE(goes(R"({"zero_optimization": {"cpu_offload_param": null}})"));
  EXPECT_FALSE(goes(R"({"zero_optimization": {"cpu_offload_param": false, "offload_param": {"device": "none"}}})"));
  const ParsedConfig details = configuration(R"({"zero_optimization": {"stage": 3, "offload_param":
      {"device": "cpu", "pin_memory": false, "max_in_cpu": 7, "buffer_count": 3}}})");
  EXPECT_FALSE(details.config.offload_param.pin_memory);
  EXPECT_THAT(details.without_effect, IsEmpty());
}

TEST(Config, OffloadBelowItsStageHasNoEffect) {
  const std::string zero = "zero_optimization.";
  for (const int stage : {0, 1, 2}) {
    for (const std::string key : {R"("offload_param": {"device": "cpu"})", R"("cpu_offload_param": true)",
                                  R"("offload_param": {"device": "nvme", "nvme_path": "/a"})"}) {
      const ParsedConfig parsed = configuration(concat(R"({"zero_optimization": {"stage": )", stage, ", ", key, "}}"));
      EXPECT_EQ(parsed.config.offload_param.device, ParamDevice::kNone);
      EXPECT_THAT(parsed.without_effect,
                  ElementsAre(AllOf(StartsWith(zero + "offload_param.device = \""), HasSubstr("at stage 3"),
                                    HasSubstr(concat("zero_optimization.stage is ", stage)))));
      EXPECT_EQ(value_of(parsed, zero + "offload_param.device").value, "\"none\"");
    }
  }
  for (const std::string key : {R"("offload_optimizer": {"device": "cpu"})", R"("cpu_offload": true)"}) {
    const ParsedConfig parsed = configuration(concat(R"({"zero_optimization": {"stage": 0, )", key, "}}"));
    EXPECT_EQ(parsed.config.offload_optimizer.device, OffloadOptimizerConfig::Device::kNone);
    EXPECT_THAT(parsed.without_effect, ElementsAre(HasSubstr("offload_optimizer.device = \"cpu\": states leave")));
  }
}

TEST(Config, NumbersAreTruthValuesAndUnknownWarmupsRiseAsLog) {
  EXPECT_TRUE(configuration(R"({"bf16": {"enabled": 1}})").config.compute_dtype == DType::kBFloat16);
  EXPECT_TRUE(configuration(R"({"bf16": {"enabled": 0}})").config.compute_dtype == DType::kFloat32);
  EXPECT_THAT(configuration(R"({"sparse_gradients": 0, "comet": {"enabled": 0}})").without_effect, IsEmpty());
  expect_error(R"({"amp": {"enabled": 1}})", {"amp", "not supported"});
  expect_error(R"({"elasticity": {"a": [{"enabled": 1}]}})", {"elasticity", "not supported"});
  // They are so from the reading on, and told as such.
  EXPECT_THAT(configuration(R"({"comet": {"enabled": 1, "tries": 1}})").without_effect,
              ElementsAre(HasSubstr(R"(comet = {"enabled":true,"tries":1}: )")));
  expect_error(R"({"fp16": {"enabled": true, "initial_scale_power": 3, "min_loss_scale": 9}})",
               {"fp16.min_loss_scale = 9", "at most 2^fp16.initial_scale_power, which is 8"});
  expect_error(R"({"bf16": {"enabled": 2}})", {"bf16.enabled = 2", "true or false"});
  expect_error(R"({"bf16": {"enabled": "true"}})", {"bf16.enabled", "true or false"});
  const auto warmup = [](const std::string& type) {
    return configuration(
        concat(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1, "warmup_type": )", type, "}}}"));
  };
  EXPECT_TRUE(std::get<WarmupLRConfig>(*warmup(R"("cosine")").config.scheduler).log_warmup);
  EXPECT_THAT(warmup(R"("cosine")").without_effect,
              ElementsAre(R"(scheduler.params.warmup_type = "cosine": the warm-up rises as "log")"));
  EXPECT_FALSE(std::get<WarmupLRConfig>(*warmup(R"("Linear")").config.scheduler).log_warmup);
  EXPECT_THAT(warmup(R"("Linear")").without_effect, IsEmpty());
}

TEST(Config, AutocastKeepsTheDtypeOfParameters) {
  const auto autocast = [](const std::string& keys) {
    return configuration(concat(R"({"torch_autocast": {"enabled": true, )", keys, "}}"));
  };
  const Config bf16 = autocast(R"("dtype": "bfloat16")").config;
  EXPECT_TRUE(bf16.autocast_dtype == DType::kBFloat16 && bf16.compute_dtype == DType::kFloat32);
  EXPECT_FALSE(bf16.fp16.enabled);
  const Config fp16 = autocast(R"("dtype": "fp16")").config;
  EXPECT_TRUE(fp16.autocast_dtype == DType::kFloat16 && fp16.compute_dtype == DType::kFloat32);
  EXPECT_TRUE(fp16.fp16.enabled);
  EXPECT_EQ(fp16.fp16.loss_scale_window, 2000);
  EXPECT_THAT(autocast(R"("dtype": "bf16", "lower_precision_safe_modules": ["torch.nn.Linear"])").without_effect,
              ElementsAre(HasSubstr("gradients travel in the dtype of the parameters")));
  EXPECT_FALSE(configuration(R"({"torch_autocast": {"dtype": "bf16"}})").config.autocast_dtype);
  expect_error(R"({"torch_autocast": {"enabled": true}})", {"torch_autocast.dtype", "required"});
  expect_error(R"({"torch_autocast": {"enabled": true, "dtype": "fp32"}})", {"torch_autocast.dtype = \"fp32\""});
}

TEST(Config, FlatKeysOfTrl) {
  const ParsedConfig parsed = configuration(R"({"zero_optimization.reduce_bucket_size": 4096,
      "zero_optimization.stage3_param_persistence_threshold": 640,
      "zero_optimization.stage3_prefetch_bucket_size": 3686.4,
      "zero_optimization": {"stage": 3, "reduce_bucket_size": 100}})");
  EXPECT_EQ(parsed.config.persistence_threshold, 640);
  EXPECT_EQ(parsed.config.prefetch_numel, 3686);
  EXPECT_THAT(value_of(parsed, "zero_optimization.stage3_prefetch_bucket_size").origin, HasSubstr("3686.4"));
  EXPECT_THAT(parsed.without_effect, ElementsAre(StartsWith("zero_optimization.reduce_bucket_size = 100"),
                                                 StartsWith("zero_optimization.reduce_bucket_size (flat)")));
}

TEST(Config, DefaultsAreThoseOfTheCode) {
  const Config config = configuration("{}").config;
  EXPECT_EQ(config.digest(), Config{}.digest());
  EXPECT_EQ(config.prefetch_numel, 50'000'000);
  EXPECT_EQ(config.persistence_threshold, 100'000);
  EXPECT_EQ(config.gradient_clipping, 1);  // as DeepSpeed since 0.19.3
  EXPECT_EQ(config.steps_per_print, 0);
  EXPECT_EQ(config.fp16.initial_scale_power, 16);
  EXPECT_EQ(config.timeout_ms, 600'000);
}

TEST(Config, EveryValueReachesItsField) {
  const Config config = configuration(R"({
    "steps_per_print": 20, "gradient_clipping": 0.5, "communication_data_type": "FP16",
    "data_types": {"grad_accum_dtype": "fp32"}, "gradient_predivide_factor": 4, "gradient_allreduce_op": "Sum",
    "zero_allow_untested_optimizer": true, "dataloader_drop_last": true,
    "fp16": {"enabled": true, "auto_cast": true, "loss_scale": 8, "initial_scale_power": 12, "loss_scale_window": 7,
             "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 0.5},
    "zero_optimization": {"stage": 1, "overlap_comm": false, "reduce_bucket_size": 1, "stage3_prefetch_bucket_size": 2,
             "stage3_param_persistence_threshold": 3, "stage3_gather_16bit_weights_on_model_save": true},
    "zeroshard": {"reduction": "native", "transport": "process_group", "unit_classes": ["A", "B"], "timeout_s": 1.5,
                  "stall_timeout_s": 0.25, "max_skipped_steps": 9, "check_replicas_every": 7,
                  "shard_one_rank": true}})")
                            .config;
  EXPECT_EQ(config.steps_per_print, 20);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.communication_dtype, DType::kFloat16);
  EXPECT_EQ(config.grad_accum_dtype, DType::kFloat32);
  EXPECT_EQ(config.prescale, 4);
  EXPECT_FALSE(config.average_gradients);
  EXPECT_TRUE(config.allow_untested_optimizer);
  EXPECT_TRUE(config.dataloader_drop_last);
  EXPECT_EQ(config.compute_dtype, DType::kFloat16);
  EXPECT_TRUE(config.fp16.auto_cast);
  EXPECT_EQ(config.fp16.loss_scale, 8);
  EXPECT_EQ(config.fp16.initial_scale_power, 12);
  EXPECT_EQ(config.fp16.loss_scale_window, 7);
  EXPECT_EQ(config.fp16.hysteresis, 3);
  EXPECT_TRUE(config.fp16.consecutive_hysteresis);
  EXPECT_EQ(config.fp16.min_loss_scale, 0.5);
  EXPECT_EQ(config.stage, 1);
  EXPECT_FALSE(config.overlap_comm);
  EXPECT_EQ(config.prefetch_numel, 2);
  EXPECT_EQ(config.persistence_threshold, 3);
  EXPECT_TRUE(config.gather_16bit_weights_on_save);
  EXPECT_EQ(config.reduction, Config::Reduction::kNative);
  EXPECT_EQ(config.transport, Config::Transport::kProcessGroup);
  EXPECT_THAT(config.unit_classes, ElementsAre("A", "B"));
  EXPECT_EQ(config.timeout_ms, 1500);
  EXPECT_EQ(config.stall_timeout_ms, 250);
  EXPECT_EQ(config.max_skipped_steps, 9);
  EXPECT_EQ(config.check_replicas_every, 7);
  EXPECT_TRUE(config.shard_one_rank);
}

TEST(Config, AliasesAndOldForms) {
  EXPECT_EQ(configuration(R"({"bfloat16": {"enabled": true}})").config.compute_dtype, DType::kBFloat16);
  EXPECT_TRUE(configuration(R"({"bf16": {"enabled": true, "auto_cast": true}})").config.bf16_auto_cast);
  EXPECT_FALSE(configuration(R"({"bf16": {"enabled": true}})").config.bf16_auto_cast);
  EXPECT_EQ(configuration(R"({"zero_optimization": true})").config.stage, 1);
  EXPECT_EQ(configuration(R"({"zero_optimization": false})").config.stage, 0);
  const ParsedConfig parsed = configuration(R"({"zero_optimization": {"prefetch_bucket_size": 5,
                                        "stage3_gather_fp16_weights_on_model_save": true}})");
  EXPECT_EQ(parsed.config.prefetch_numel, 5);
  EXPECT_TRUE(parsed.config.gather_16bit_weights_on_save);
  EXPECT_EQ(value_of(parsed, "zero_optimization.stage3_prefetch_bucket_size").origin,
            "file: as zero_optimization.prefetch_bucket_size");
  expect_error(R"({"zero_optimization": {"prefetch_bucket_size": 5, "stage3_prefetch_bucket_size": 5}})",
               {"zero_optimization.stage3_prefetch_bucket_size", "twice", "prefetch_bucket_size"});
  expect_error(R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": true}})", {"bf16.enabled", "twice"});
}

TEST(Config, NullMeansNotGiven) {
  const ParsedConfig parsed = configuration(R"({"fp16": null, "optimizer": null, "communication_data_type": null,
      "zero_optimization": {"stage": null, "offload_param": null, "zenflow": null}})");
  EXPECT_EQ(parsed.config.digest(), Config{}.digest());
  EXPECT_THAT(value_of(parsed, "zero_optimization.stage").origin, HasSubstr("null"));
}

TEST(Config, IntegersMayBeWrittenAsFloats) {
  EXPECT_EQ(configuration(R"({"zero_optimization": {"stage3_prefetch_bucket_size": 5e7}})").config.prefetch_numel,
            50'000'000);
  EXPECT_EQ(configuration(R"({"train_batch_size": 4.0})").config.train_batch_size, 4);
  EXPECT_EQ(configuration(R"({"zero_optimization": {"stage3_prefetch_bucket_size": 0.9}})").config.prefetch_numel, 0);
}

TEST(Config, AutoFromTheHiddenSize) {
  constexpr const char* kJson = R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})";
  ConfigContext context = ranks(2);
  expect_error(kJson, {"zero_optimization.stage3_prefetch_bucket_size = \"auto\"", "hidden size"}, context);
  context.hidden_size = 64;
  const ParsedConfig parsed = parse_config(kJson, context);
  EXPECT_EQ(parsed.config.prefetch_numel, 3686);
  EXPECT_EQ(parsed.config.persistence_threshold, 640);
  EXPECT_THAT(value_of(parsed, "zero_optimization.stage3_prefetch_bucket_size").origin, StartsWith("auto"));
}

TEST(Config, AutoValuesThatNobodyKnowsAreToldAtOnce) {
  const std::string message = error_of(R"({"zero_optimization": {"stage3_prefetch_bucket_size": "auto"},
      "optimizer": {"type": "auto"}, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})");
  EXPECT_THAT(message, StartsWith("3 values are \"auto\", and not known here:\n"));
  EXPECT_THAT(message, HasSubstr("\n  optimizer.type = \"auto\": only the caller can know"));
  EXPECT_THAT(message, HasSubstr("\n  scheduler.params.total_num_steps = \"auto\": only the caller can know"));
  EXPECT_THAT(message, HasSubstr("stage3_prefetch_bucket_size = \"auto\": needs the model's hidden size"));
  EXPECT_THAT(message, HasSubstr("--hidden-size"));
}

TEST(Config, AnAutoLearningRateIsTold) {
  using ::testing::ElementsAre;
  const auto assumed = [](const std::string& json) { return configuration(json).assumed; };
  EXPECT_THAT(assumed(R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}})"),
              ElementsAre(HasSubstr("optimizer.params.lr = \"auto\" becomes 0.001, the default")));
  EXPECT_THAT(assumed(R"({"optimizer": {"type": "Adagrad", "params": {"lr": "auto"}}})"),
              ElementsAre(HasSubstr("becomes 0.01")));
  EXPECT_THAT(assumed(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9,
                          "warmup_max_lr": "auto", "warmup_min_lr": "auto"}}})"),
              ElementsAre(HasSubstr("scheduler.params.warmup_max_lr = \"auto\" becomes 0.001")));
  for (const char* rest : {R"("lr": 0.1)", R"("lr": null)", R"("betas": "auto")"})
    EXPECT_THAT(assumed(R"({"optimizer": {"type": "AdamW", "params": {)" + std::string(rest) + "}}}"), ElementsAre());
}

TEST(Config, AutoElsewhereIsTheDefault) {
  const ParsedConfig parsed = configuration(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
      "gradient_clipping": "auto", "amp": {"enabled": "auto", "opt_level": "auto"},
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}}})");
  EXPECT_EQ(parsed.config.compute_dtype, DType::kFloat32);
  EXPECT_EQ(parsed.config.optimizer->lr, 1e-3);
  EXPECT_EQ(parsed.config.optimizer->beta2, 0.999);
  EXPECT_FALSE(std::get<WarmupLRConfig>(*parsed.config.scheduler).warmup_max_lr);
  EXPECT_THAT(value_of(parsed, "optimizer.params.lr").origin, StartsWith("auto"));
  expect_error(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})",
               {"scheduler.params.total_num_steps = \"auto\"", "only the caller", "at least 1"});
  EXPECT_EQ(configuration(R"({"zeroshard": {"transport": "auto"}})").config.transport, Config::Transport::kAuto);
}

TEST(Config, KeysWithoutEffectAreNamedWithTheirReason) {
  const ParsedConfig parsed = configuration(R"({"dump_state": true, "comet": {"enabled": true, "x": [1]},
      "zero_optimization": {"stage": 2, "contiguous_gradients": false, "allgather_bucket_size": 4e8}})");
  EXPECT_THAT(parsed.without_effect,
              ::testing::UnorderedElementsAre(
                  AllOf(StartsWith("dump_state = true: "), HasSubstr("config explain")), StartsWith("comet = "),
                  AllOf(StartsWith("zero_optimization.contiguous_gradients = false: "), HasSubstr("contiguous")),
                  StartsWith("zero_optimization.allgather_bucket_size")));
}

TEST(Config, ABreakdownWithoutLinesThatTellItIsNamed) {
  EXPECT_THAT(configuration(R"({"wall_clock_breakdown": true})").without_effect,
              ElementsAre(AllOf(StartsWith("wall_clock_breakdown = true: "), HasSubstr("steps_per_print is not set"))));
  const ParsedConfig parsed = configuration(R"({"wall_clock_breakdown": true, "steps_per_print": 10})");
  EXPECT_TRUE(parsed.config.wall_clock_breakdown);
  EXPECT_THAT(parsed.without_effect, ElementsAre());
}

TEST(Config, MetricsGoWhereDeepSpeedsBlocksSay) {
  const Config config = configuration(R"({
      "tensorboard": {"enabled": true, "output_path": "runs", "job_name": "a"}, "csv_monitor": {"enabled": true},
      "wandb": {"enabled": true, "team": null, "group": "g"}})")
                            .config;
  EXPECT_TRUE(config.tensorboard.enabled && config.csv_monitor.enabled && config.wandb.enabled);
  EXPECT_EQ(config.tensorboard.output_path, "runs");
  EXPECT_EQ(config.tensorboard.job_name, "a");
  EXPECT_EQ(config.csv_monitor.output_path, "");
  EXPECT_EQ(config.csv_monitor.job_name, "DeepSpeedJobName");
  EXPECT_EQ(config.wandb.project, "deepspeed");
  EXPECT_EQ(config.wandb.group, "g");
  EXPECT_FALSE(config.wandb.team);
  EXPECT_EQ(config.digest(), configuration("{}").config.digest());
  EXPECT_FALSE(configuration("{}").config.tensorboard.enabled);
  expect_error(R"({"tensorboard": {"enabled": true, "jobname": "a"}})", {"tensorboard.jobname", "job_name"});
  expect_error(R"({"csv_monitor": {"enabled": "yes"}})", {"csv_monitor.enabled", "true or false"});
}

TEST(Config, DefaultsWithoutEffectAreNotTold) {
  const ParsedConfig parsed = configuration(R"({"memory_breakdown": false, "comet": {"enabled": false, "job_name": "x"},
      "flops_profiler": {}, "comms_logger": {"enabled": false}, "dump_state": null, "disable_allgather": "auto",
      "zero_optimization": {"stage": 2, "contiguous_gradients": true, "allgather_bucket_size": 5e8}})");
  EXPECT_THAT(parsed.without_effect, ElementsAre());
  EXPECT_THAT(configuration(R"({"flops_profiler": {"enabled": true}})").without_effect,
              ElementsAre(HasSubstr("torch.profiler does it")));
}

TEST(Config, PrescalingDividesByTheWorldSizeBeforeTheSum) {
  const ParsedConfig parsed = parse_config(R"({"prescale_gradients": true, "gradient_predivide_factor": 2})", ranks(8));
  EXPECT_EQ(parsed.config.prescale, 8);
  EXPECT_THAT(value_of(parsed, "gradient_predivide_factor").origin, HasSubstr("unused"));
}

TEST(Config, EveryValueHasAnOriginAndReadsBack) {
  const ParsedConfig parsed = parse_config(kFromTransformers, ranks(2));
  std::string previous;
  for (const ConfigValue& value : parsed.values) {
    EXPECT_NE(value.value, "") << value.path;
    EXPECT_NE(value.origin, "") << value.path;
    EXPECT_NE(value.path, previous);
    previous = value.path;
  }
}

TEST(Config, PlacementsKeepTheirOrder) {
  const auto placed = [](const std::string& rules) {
    return configuration(R"({"zero_optimization": {"stage": 3}, "zeroshard": {"placement": [)" + rules + "]}}").config;
  };
  const std::string layers = R"({"units": "layers.0-3", "parameters": "replicated"})",
                    head = R"({"units": "head", "parameters": "sharded"})";
  const Config config = placed(layers + ", " + head);
  ASSERT_EQ(config.placement.size(), 2U);
  EXPECT_EQ(config.placement[0].units, "layers.0-3");
  EXPECT_TRUE(config.placement[0].replicated);
  EXPECT_EQ(config.placement[1].units, "head");
  EXPECT_FALSE(config.placement[1].replicated);
  EXPECT_NE(config.digest(), placed(layers).digest());
  EXPECT_NE(config.digest(), placed(head + ", " + layers).digest());
}

TEST(ConfigDigest, ChangesWithWhatRanksMustShare) {
  const uint64_t base = configuration(R"({"zero_optimization": {"stage": 1}})").config.digest();
  for (const char* json :
       {R"({"zero_optimization": {"stage": 2}})", R"({"zero_optimization": {"stage": 1}, "gradient_clipping": 2})",
        R"({"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}})",
        R"({"zero_optimization": {"stage": 1}, "train_batch_size": 2})",
        R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW"}})",
        R"({"zero_optimization": {"stage": 1}, "scheduler": {"type": "WarmupLR"}})",
        R"({"zero_optimization": {"stage": 1}, "zeroshard": {"unit_classes": ["A"]}})",
        R"({"zero_optimization": {"stage": 1}, "communication_data_type": "fp32"})"}) {
    EXPECT_NE(configuration(json).config.digest(), base) << json;
  }
  EXPECT_NE(parse_config(R"({"zero_optimization": {"stage": 1}})", ranks(2)).config.digest(), base);
}

TEST(ConfigDigest, IgnoresSpellingAndWhatRanksMayDifferIn) {
  const uint64_t base =
      configuration(R"({"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1}})").config.digest();
  for (const char* json : {R"({"zero_optimization": true, "optimizer": {"params": {"lr": 1e-3}, "type": "adamw"}})",
                           R"({"zero_optimization": {"stage": 1, "contiguous_gradients": false},
                               "optimizer": {"type": "AdamW"}, "steps_per_print": 3, "zeroshard": {"timeout_s": 5}})"}) {
    EXPECT_EQ(configuration(json).config.digest(), base) << json;
  }
}

}  // namespace
}  // namespace zeroshard
