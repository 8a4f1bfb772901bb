#include <cstdio>
#include <fstream>

#include "base/format.h"
#include "base/suggest.h"
#include "support.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

TEST(ConfigErrors, UnknownKeysNameTheNearest) {
  expect_error(R"({"zero_optimization": {"stge": 3}})",
               {"zero_optimization.stge = 3", "unknown key", "did you mean 'zero_optimization.stage'?"});
  expect_error(R"({"fp16": {"enable": true}})", {"fp16.enable = true", "'fp16.enabled'"});
  expect_error(R"({"zeroshard": {"reducton": 1}})", {"'zeroshard.reduction'"});
}

std::vector<std::string> unknown_in(std::string_view json) {
  return parse_config(json, ranks(1)).unknown;
}

TEST(ConfigErrors, UnknownKeysAtTheTopAreToldAndIgnored) {
  using ::testing::ElementsAre;
  EXPECT_THAT(unknown_in(R"({"zero_optimisation": {"stage": 3}, "zeroshardd": 1})"),
              ElementsAre(R"(zero_optimisation = {"stage":3}: did you mean 'zero_optimization'?)",
                          "zeroshardd = 1: did you mean 'zeroshard'?"));
  EXPECT_THAT(unknown_in(R"({"reduce_bucket_size": 3})"),
              ElementsAre("reduce_bucket_size = 3: did you mean 'zero_optimization.reduce_bucket_size'?"));
  EXPECT_THAT(unknown_in(R"({"zero_optimization.stgae": 1, "fp16.enable": true})"),
              ElementsAre("zero_optimization.stgae = 1: did you mean 'zero_optimization.stage'?",
                          "fp16.enable = true: did you mean 'fp16.enabled'?"));
  EXPECT_THAT(unknown_in(R"({"_comment": "x", "comms_config": {"verbose": false}})"),
              ElementsAre(R"(_comment = "x")", R"(comms_config = {"verbose":false})"));
  EXPECT_EQ(parse_config(R"({"_comment": "x", "stagee": 3})", ranks(1)).warning(),
            "unknown keys, ignored as DeepSpeed does: _comment = \"x\"; stagee = 3: did you mean "
            "'zero_optimization.stage'?");
  EXPECT_EQ(configuration("{}").warning(), "");
  expect_error(R"({"unknown": {"a": 1, "a": 2}})", {"unknown.a: this key is given twice"});
}

TEST(ConfigErrors, AnErrorNamesTheIgnoredKeysThatMayBeItsCause) {
  expect_error(R"({"zero_optimisation": {"stage": 3}, "_comment": 1,
                   "zeroshard": {"placement": [{"units": "a", "parameters": "sharded"}]}})",
               {"is for stage 3; zero_optimization.stage is 0",
                "\n  zero_optimisation = {\"stage\":3}: this key is unknown and was ignored; did you mean "
                "'zero_optimization'?"});
  EXPECT_THAT(error_of(R"({"_comment": 1, "fp16": {"enabled": 2}})"), ::testing::Not(HasSubstr("_comment")));
}

TEST(ConfigErrors, WordsCountMoreThanLetters) {
  const auto of_schedule = [](const std::string& key) {
    return R"({"scheduler": {"type": "WarmupLR", "params": {")" + key + R"(": 5}}})";
  };
  expect_error(of_schedule("warmup_steps"), {"did you mean 'scheduler.params.warmup_num_steps'?"});
  expect_error(of_schedule("num_warmup_steps"), {"did you mean 'scheduler.params.warmup_num_steps'?"});
  expect_error(R"({"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}})",
               {"did you mean 'optimizer.params.lr'?"});
  const std::vector<std::string> known = {"a.warmup_num_steps", "a.warmup_type", "b.lr", "a.steps"};
  EXPECT_EQ(suggest_path("a.warmup_steps", known), " did you mean 'a.warmup_num_steps'?");
  EXPECT_EQ(suggest_path("a.learning_rate", known), " did you mean 'b.lr'?");
  EXPECT_EQ(suggest_path("a.stepz", known), " did you mean 'a.steps'?");
  EXPECT_EQ(suggest_path("a.number_of_heads", known), "");
  EXPECT_EQ(suggest_path("a.__", known), "");
}

TEST(ConfigErrors, NothingNearIsNotSuggested) {
  const std::string message = error_of(R"({"fp16": {"qwertyuiop": 1}})");
  EXPECT_THAT(message, HasSubstr("fp16.qwertyuiop = 1: unknown key"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("did you mean")));
}

TEST(ConfigErrors, AllUnknownKeysAreToldAtOnce) {
  const std::string message =
      error_of(R"({"zero_optimization": {"stge": 3, "stage": 7}, "qwertyuiop": 1, "bf16": {"q": 1},
      "optimizer": {"type": "AdamW", "params": {"weight_decai": 0}},
      "scheduler": {"type": "WarmupLR", "params": {"speed": 5}}, "fp16": {"enable": true}})");
  EXPECT_THAT(message, ::testing::StartsWith("5 unknown keys; `zeroshard config keys` lists all\n"));
  EXPECT_THAT(message, HasSubstr("\n  zero_optimization.stge = 3: did you mean 'zero_optimization.stage'?\n"));
  EXPECT_THAT(message, HasSubstr("\n  bf16.q = 1\n"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("qwertyuiop")));
  EXPECT_THAT(message, HasSubstr("\n  fp16.enable = true: did you mean 'fp16.enabled'?\n"));
  EXPECT_THAT(message, HasSubstr("\n  optimizer.params.weight_decai = 0: did you mean 'optimizer.params.weight_decay'? "
                                 "allowed here: lr, "));
  EXPECT_THAT(message, HasSubstr("\n  scheduler.params.speed = 5: allowed here: warmup_"));
}

TEST(ConfigErrors, OfManyUnknownKeysTheFirstAreTold) {
  std::string json = "{";
  for (int i = 0; i < 4'000; ++i) json += "\"key_without_a_meaning_" + std::to_string(i) + "\": 1,";
  const std::string message = error_of("{\"fp16\": " + json + "}}");
  EXPECT_THAT(message, ::testing::StartsWith("4000 unknown keys;"));
  EXPECT_THAT(message, ::testing::EndsWith("\n  and 3980 more"));
  const std::vector<std::string> ignored = unknown_in(json + "}");
  ASSERT_EQ(ignored.size(), 21U);
  EXPECT_EQ(ignored.back(), "and 3980 more");
}

// Looking for one among them takes longer the more there are: 90,000 took seconds.
TEST(ConfigErrors, ObjectsHaveALimitOfKeys) {
  std::string keys;
  for (int i = 0; i < 90'000; ++i) keys.append("\"").append(std::to_string(i)).append("\": 1,");
  EXPECT_EQ(error_of("{" + keys + "}"),
            "the configuration has more than 4096 keys: `zeroshard config keys` lists all that there are");
  expect_error(R"({"optimizer": {"type": "AdamW", "params": {)" + keys + "}}}",
               {"optimizer.params has more than 4096"});
  expect_error(R"({"a": [{}, {)" + keys + "}]}", {"a[1] has more than 4096"});
}

TEST(ConfigErrors, NoTextOfTheFileIsTakenAsItIs) {
  const std::string escape = R"(\u001b[31m)", zero = R"(\u0000)";
  for (const std::string& part : {escape, zero}) {
    const std::string shown = part == zero ? "\\x00" : "\\x1b[31m";
    expect_error(R"({"fp16": {"a)" + part + R"(b": 1}})", {"fp16.a" + shown + "b = 1: unknown key"});
    expect_error(R"({"fp16": {"a)" + part + R"(b": 1, "c": 2}})", {"\n  fp16.a" + shown + "b = 1\n  fp16.c = 2"});
    EXPECT_EQ(unknown_in(R"({"a)" + part + R"(b": 1})"), std::vector{"a" + shown + "b = 1"});
    expect_error(R"({"a)" + part + R"(": {"b": 1, "b": 2}})", {"a" + shown + ".b: this key is given twice"});
    expect_error(R"({"a)" + part + R"(": 1e999})", {"a" + shown + " = 1e999"});
    expect_error(R"({"optimizer": {"type": "AdamW", "params": {"l)" + part + R"(r": 1}}})",
                 {"optimizer.params.l" + shown + "r = 1: unknown key"});
  }
  for (const char* json : {R"({"a\u001bb": 1, "a\u001bb": 2})", R"({"train_batch_size": "\u009b31m"})",
                           "{\"a\x1b\": 1}", "{\"fp16\": {\"a\x7f\": 1}}"}) {
    const std::string message = error_of(json);
    EXPECT_NE(message, "");
    for (const char* code : {"\x1b", "\x7f", "\u009b"}) EXPECT_THAT(message, ::testing::Not(HasSubstr(code)));
  }
}

TEST(ConfigErrors, LongTextsAreCut) {
  const std::string name(200'000, 'x');
  for (const std::string& json :
       {"{\"fp16\": {\"" + name + "\": 1}}", "{\"" + name + "\": {\"a\": 1, \"a\": 2}}",
        "{\"fp16\": {\"a\": \"" + name + "\"}}", "{\"train_batch_size\": \"" + name + "\"}",
        "{\"a\": 1 \"" + name + "\"}", "{\"" + name + "\": 1e999}", "{\"optimizer\": {\"type\": \"" + name + "\"}}",
        "{\"fp16\": {\"" + name + "\": 1}, \"bf16\": {\"" + name + "\": 1}}"}) {
    const std::string message = error_of(json);
    EXPECT_NE(message, "") << json.substr(0, 40);
    EXPECT_LT(message.size(), 600u) << json.substr(0, 40);
  }
  EXPECT_LT(unknown_in("{\"" + name + "\": \"" + name + "\"}").at(0).size(), 600u);
}

TEST(ConfigErrors, TheMessageEndsWhereNoNameIsNear) {
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "Qwertyuiop"}})"),
            "scheduler.type = \"Qwertyuiop\": must be one of WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, "
            "LRRangeTest");
  expect_error(R"({"scheduler": {"type": "OnceCycle"}})", {"LRRangeTest; did you mean 'OneCycle'?"});
}

TEST(ConfigErrors, ValuesOutOfRange) {
  expect_error(R"({"zero_optimization": {"stage": 4}})", {"zero_optimization.stage = 4", "an integer from 0 to 3"});
  expect_error(R"({"zero_optimization": {"stage": -1}})", {"zero_optimization.stage = -1"});
  expect_error(R"({"zero_optimization": {"reduce_bucket_size": -1}})", {"reduce_bucket_size = -1", "at least 0"});
  expect_error(R"({"zero_optimization": {"reduce_bucket_size": -0.5}})", {"reduce_bucket_size = -0.5"});
  expect_error(R"({"zero_optimization": {"reduce_bucket_size": 1e30}})", {"reduce_bucket_size = 1e+30"});
  expect_error(R"({"zero_optimization": {"reduce_bucket_size": 18446744073709551615}})", {"18446744073709551615"});
  expect_error(R"({"train_batch_size": 0})", {"train_batch_size = 0", "at least 1"});
  expect_error(R"({"train_batch_size": 2.5})", {"train_batch_size = 2.5", "integer"});
  expect_error(R"({"gradient_clipping": -1})", {"gradient_clipping = -1"});
  expect_error(R"({"gradient_clipping": NaN})", {"gradient_clipping = \"NaN\"", "a number"});
  expect_error(R"({"gradient_clipping": Infinity})", {"gradient_clipping = \"Infinity\""});
  expect_error(R"({"steps_per_print": -Infinity})", {"steps_per_print = \"-Infinity\"", "or Infinity"});
  expect_error(R"({"gradient_predivide_factor": 0})", {"gradient_predivide_factor = 0", "above 0"});
  expect_error(R"({"fp16": {"hysteresis": 0}})", {"fp16.hysteresis = 0"});
  expect_error(R"({"fp16": {"loss_scale": -2}})", {"fp16.loss_scale = -2"});
  expect_error(R"({"fp16": {"loss_scale": NaN}})", {"fp16.loss_scale"});
  expect_error(R"({"zeroshard": {"timeout_s": 0}})", {"zeroshard.timeout_s = 0"});
}

TEST(ConfigErrors, WrongTypes) {
  expect_error(R"({"train_batch_size": "16"})", {"train_batch_size = \"16\"", "an integer"});
  expect_error(R"({"train_batch_size": true})", {"train_batch_size = true"});
  expect_error(R"({"fp16": {"enabled": 2}})", {"fp16.enabled = 2", "true or false"});
  expect_error(R"({"fp16": {"enabled": "true"}})", {"fp16.enabled = \"true\""});
  expect_error(R"({"fp16": true})", {"fp16 = true", "must be an object"});
  expect_error(R"({"optimizer": "AdamW"})", {"optimizer = \"AdamW\"", "must be an object"});
  expect_error(R"({"zero_optimization": 3})", {"zero_optimization = 3"});
  expect_error(R"([])", {"must be an object", "[]"});
  expect_error(R"("text")", {"must be an object"});
  expect_error(R"({"communication_data_type": "fp8"})", {"communication_data_type = \"fp8\"", "fp32, fp16, bf16"});
  expect_error(R"({"zeroshard": {"unit_classes": ["A", 1]}})", {"zeroshard.unit_classes", "a list of strings"});
  for (const char* rules :
       {R"("layers.0")", R"([{"units": "a"}])", R"([{"units": 1, "parameters": "sharded"}])",
        R"([{"units": "a..b", "parameters": "sharded"}])", R"([{"units": "3-0", "parameters": "sharded"}])",
        R"([{"units": "a", "parameters": "whole"}])",
        R"([{"units": "a", "parameters": "sharded", "gradients": "sharded"}])"}) {
    expect_error(std::string(R"({"zero_optimization": {"stage": 3}, "zeroshard": {"placement": )") + rules + "}}",
                 {"zeroshard.placement", "a list of {\"units\": \"layers.0-3\""});
  }
  expect_error(
      R"({"zero_optimization": {"stage": 2}, "zeroshard": {"placement": [{"units": "a", "parameters": "sharded"}]}})",
      {"zeroshard.placement", "is for stage 3; zero_optimization.stage is 2"});
  expect_error(R"({"zero_optimization": {"contiguous_gradients": "yes"}})", {"contiguous_gradients = \"yes\""});
}

TEST(ConfigErrors, WhatIsNotSupportedIsSaidSo) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {R"({"zero_optimization": {"zero_quantized_nontrainable_weights": true}})",
       "zero_quantized_nontrainable_weights = true"},
      {R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})", "zenflow"},
      {R"({"tensor_parallel": {"autotp_size": 2}})", "tensor_parallel.autotp_size = 2"},
      {R"({"fp16": {"fp16_master_weights_and_grads": true}})", "fp16.fp16_master_weights_and_grads"},
      {R"({"bf16": {"bf16_optimizer_states": true}})", "bf16.bf16_optimizer_states"},
      {R"({"bf16": {"bf16_master_weights_and_grads": true}})", "bf16.bf16_master_weights_and_grads"},
      {R"({"elasticity": {"enabled": true}})", "elasticity"},
      {R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})",
       "compression_training"},
      {R"({"sparse_gradients": true})", "sparse_gradients = true"},
      {R"({"compile": {"deepcompile": true}})", "compile.deepcompile = true"},
  };
  for (const auto& [json, path] : cases) expect_error(json, {path, "not supported", "allowed:"});
}

TEST(ConfigErrors, OffloadThatCannotBe) {
  const auto offload = [](int stage, const std::string& keys) {
    return concat(R"({"zero_optimization": {"stage": )", stage, R"(, "offload_optimizer": {)", keys, "}}}");
  };
  const std::string path = "zero_optimization.offload_optimizer.";
  expect_error(offload(3, R"("device": "nvme")"), {path + R"(device = "nvme": needs )" + path + "nvme_path"});
  expect_error(offload(3, R"("device": "tape")"), {path + R"(device = "tape")", "one of none, cpu, nvme"});
  for (const char* paths : {R"("")", "[]", R"(["/a", ""])", "3"})
    expect_error(offload(3, concat(R"("device": "nvme", "nvme_path": )", paths)),
                 {path + "nvme_path", "a list of paths"});
  for (const char* ratio : {"-0.1", "1.5", R"("half")"})
    expect_error(offload(2, concat(R"("ratio": )", ratio)), {path + "ratio = ", "at least 0.0 and at most 1.0"});
  expect_error(offload(2, R"("buffer_count": 0)"), {path + "buffer_count = 0", "from 1 to"});
}

TEST(ConfigErrors, GradientsAreInMemory) {
  const auto gradients = [](const std::string& place) {
    return concat(R"({"zeroshard": {"offload": {"gradients": )", place, "}}}");
  };
  for (const auto& [place, is] : {std::pair{"auto", OffloadConfig::Gradients::kAuto},
                                  {"device", OffloadConfig::Gradients::kDevice},
                                  {"CPU", OffloadConfig::Gradients::kCpu},
                                  {"nvme", OffloadConfig::Gradients::kNvme}})
    EXPECT_EQ(configuration(gradients(concat('"', place, '"'))).config.offload.gradients, is) << place;
  for (const char* const place : {R"("none")", "true"})
    expect_error(gradients(place),
                 {concat("zeroshard.offload.gradients = ", place), "must be one of auto, device, cpu, nvme"});
}

TEST(ConfigErrors, MomentsHaveOneOfThreeDtypes) {
  for (const bool is_alias : {false, true}) {
    const std::string key = is_alias ? "zeroshard.offload.moment_dtype" : "zeroshard.moment_dtype";
    const auto moments = [&](const std::string& dtype) {
      const std::string own = concat(R"({"moment_dtype": )", dtype, "}");
      return concat(R"({"zeroshard": )", is_alias ? concat(R"({"offload": )", own, "}") : own, "}");
    };
    EXPECT_EQ(configuration("{}").config.moment_dtype, DType::kFloat32);
    EXPECT_EQ(configuration(moments(R"("fp32")")).config.moment_dtype, DType::kFloat32);
    EXPECT_EQ(configuration(moments(R"("int8")")).config.moment_dtype, kCodes);
    const Config narrow = configuration(moments(R"("BF16")")).config;
    EXPECT_EQ(narrow.moment_dtype, DType::kBFloat16);
    EXPECT_NE(narrow.digest(), configuration("{}").config.digest());  // ranks must agree
    for (const char* const dtype : {R"("fp16")", R"("bfloat16")", "16", "true", R"("int4")"})
      expect_error(moments(dtype), {concat("moment_dtype = ", dtype), "must be one of fp32, bf16, int8"});
  }
  expect_error(R"({"zeroshard": {"moment_dtype": "int8", "offload": {"moment_dtype": "bf16"}}})", {"moment_dtype"});
}

TEST(ConfigErrors, ParametersThatCannotLieInFiles) {
  const auto offload = [](int stage, const std::string& keys) {
    return concat(R"({"zero_optimization": {"stage": )", stage, R"(, "offload_param": {"device": "nvme")", keys, "}}}");
  };
  const std::string path = "zero_optimization.offload_param.";
  expect_error(offload(3, ""), {path + R"(device = "nvme": needs )" + path + "nvme_path"});
  for (const char* paths : {R"("")", "[]", R"(["/a", ""])", "3"})
    expect_error(offload(3, concat(R"(, "nvme_path": )", paths)), {path + "nvme_path", "a list of paths"});
  expect_error(offload(3, R"(, "buffer_count": 0)"), {path + "buffer_count = 0", "from 1 to"});
  expect_error(offload(3, R"(, "buffer_size": 0)"), {path + "buffer_size = 0"});
  expect_error(offload(3, R"(, "max_in_cpu": -1)"), {path + "max_in_cpu = -1"});
}

TEST(ConfigErrors, AmountsOfMemoryAndRequestsToFiles) {
  const auto limit = [](const std::string& value) {
    return concat(R"({"zeroshard": {"offload": {"host_memory": )", value, "}}}");
  };
  for (const char* wrong : {"0", "-1", "0.5", R"("8 GiBs")", R"("")", R"("lots")", "true", "[1]", "1e30"})
    expect_error(limit(wrong), {"zeroshard.offload.host_memory = ", R"(such as "8GiB")"});
  expect_error(R"({"zeroshard": {"offload": {"host_memroy": 1}}})", {"host_memroy", "host_memory"});
  expect_error(R"({"aio": {"block_size": 6000}})", {"aio.block_size = 6000: must be a multiple of 4096"});
  expect_error(R"({"aio": {"block_size": 512}})", {"aio.block_size = 512", "from 4096"});
  expect_error(R"({"aio": {"queue_depth": 0}})", {"aio.queue_depth = 0", "from 1"});
  expect_error(R"({"aio": {"thread_count": 0}})", {"aio.thread_count = 0", "from 1"});
  expect_error(R"({"aio": {"use_gds": true}})", {"aio.use_gds = true: GPUDirect Storage is not supported"});
}

TEST(ConfigErrors, NeutralValuesOfWhatIsNotSupportedAreFine) {
  EXPECT_EQ(error_of(R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": false, "mics_shard_size": -1,
                         "zero_hpz_partition_size": 1, "cpu_offload": false, "offload_param": {}},
                         "tensor_parallel": {"autotp_size": 0}, "elasticity": {"enabled": false, "version": 0.2},
                         "compile": {"deepcompile": false}, "sparse_gradients": false})"),
            "");
}

TEST(ConfigErrors, KeysThatExcludeEachOther) {
  expect_error(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})", {"fp16.enabled", "bf16"});
  expect_error(R"({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}})",
               {"gradient_allreduce_op = \"sum\"", "stage"});
}

TEST(ConfigErrors, ContextsThatCannotBe) {
  EXPECT_THROW(parse_config("{}", ranks(0)), ConfigError);
  ConfigContext context = ranks(1);
  context.hidden_size = 0;
  EXPECT_THROW(parse_config("{}", context), ConfigError);
  context.hidden_size = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(parse_config("{}", context), ConfigError);
}

TEST(ConfigErrors, FilesAreNamed) {
  const std::string path = ::testing::TempDir() + "zeroshard_config_errors.json";
  EXPECT_THROW(load_config(path + ".missing"), ConfigError);
  std::ofstream(path) << R"({"train_batch_size": -1})";
  try {
    load_config(path);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path + ": train_batch_size = -1"));
  }
  std::ofstream(path) << R"({"train_batch_size": 3} // comment)";
  EXPECT_EQ(load_config(path).config.train_batch_size, 3);
  std::remove(path.c_str());
  EXPECT_THROW(load_config(::testing::TempDir()), ConfigError);
}

TEST(Suggest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("stage", "stgae"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace zeroshard
