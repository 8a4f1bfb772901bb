#include "config/support.h"

namespace zeroshard {
namespace {

ConfigContext on_hosts(int world_size, int ranks_per_host) {
  ConfigContext context = ranks(world_size);
  context.ranks_per_host = ranks_per_host;
  return context;
}

TEST(Mesh, KeysSayHowManyRanksShardAReplica) {
  EXPECT_EQ(parse_config("{}", ranks(6)).config.shard_ranks(), 6);
  EXPECT_EQ(parse_config(R"({"zeroshard": {"mesh": {"shard": 3}}})", ranks(6)).config.shard_ranks(), 3);
  EXPECT_EQ(parse_config(R"({"zero_optimization": {"mics_shard_size": 2}})", ranks(6)).config.shard_ranks(), 2);
  for (const char* off : {"-1", "0"})
    EXPECT_EQ(
        parse_config(concat(R"({"zero_optimization": {"mics_shard_size": )", off, "}}"), ranks(6)).config.shard_size,
        0);
  const char* both = R"({"zeroshard": {"mesh": {"shard": 2}}, "zero_optimization": {"mics_shard_size": 2}})";
  EXPECT_EQ(parse_config(both, ranks(6)).config.shard_ranks(), 2);
}

TEST(Mesh, AHostIsAsManyRanksAsTheLauncherSays) {
  const char* json = R"({"zeroshard": {"mesh": {"shard": "host", "outer": "replicate"}}})";
  const ParsedConfig parsed = parse_config(json, on_hosts(8, 4));
  EXPECT_EQ(parsed.config.shard_ranks(), 4);
  EXPECT_EQ(value_of(parsed, "zeroshard.mesh.shard").origin, "file: 4 ranks");
  expect_error(json, {"zeroshard.mesh.shard", "host", "write the number"}, ranks(8));
  const ParsedConfig one_host = parse_config(json, on_hosts(4, 4));
  ASSERT_EQ(one_host.without_effect.size(), 1U);
  EXPECT_THAT(one_host.without_effect[0], ::testing::HasSubstr("all 4 ranks are one group"));
}

TEST(Mesh, QuantizedGradientsAreForSeveralGroups) {
  const char* json =
      R"({"zeroshard": {"mesh": {"shard": 2}}, "zero_optimization": {"zero_quantized_gradients": true}})";
  const ParsedConfig several = parse_config(json, ranks(4)), one = parse_config(json, ranks(2));
  EXPECT_TRUE(several.config.quantized_gradients && several.without_effect.empty());
  ASSERT_FALSE(one.without_effect.empty());
  EXPECT_THAT(one.without_effect[0], ::testing::HasSubstr("zero_quantized_gradients"));
  EXPECT_NE(several.config.digest(),
            parse_config(R"({"zeroshard": {"mesh": {"shard": 2}}})", ranks(4)).config.digest());
}

// Returns a configuration with these members of "zero_optimization" and "zeroshard.mesh".
std::string json_of(const std::string& zero, const std::string& mesh) {
  return concat(R"({"zero_optimization": {)", zero, R"(}, "zeroshard": {"mesh": {)", mesh, "}}}");
}

TEST(Mesh, GroupsShareStatesAtStage3) {
  const std::string shared = R"("shard": 2, "outer": "optimizer")", copied = R"("shard": 2, "outer": "replicate")";
  const ParsedConfig parsed = parse_config(json_of(R"("stage": 3)", shared), ranks(6));
  EXPECT_TRUE(parsed.config.shares_states() && parsed.without_effect.empty());
  EXPECT_EQ(parsed.config.shard_ranks(), 2);
  const Config replicas = parse_config(json_of(R"("stage": 3)", copied), ranks(6)).config;
  EXPECT_FALSE(replicas.shares_states());
  EXPECT_NE(parsed.config.digest(), replicas.digest());
  for (const char* stage : {R"("stage": 0)", R"("stage": 1)", R"("stage": 2)"}) {
    const ParsedConfig whole = parse_config(json_of(stage, shared), ranks(6));
    EXPECT_EQ(whole.config.shard_ranks(), 6);
    EXPECT_FALSE(whole.config.shares_states());
    ASSERT_EQ(whole.without_effect.size(), 1U);
    EXPECT_THAT(whole.without_effect[0], ::testing::HasSubstr("all ranks are one group"));
    EXPECT_EQ(whole.config.digest(), parse_config(json_of(stage, ""), ranks(6)).config.digest());
  }
  const ParsedConfig no_groups = parse_config(json_of("", R"("outer": "optimizer")"), ranks(6));
  ASSERT_EQ(no_groups.without_effect.size(), 1U);
  EXPECT_THAT(no_groups.without_effect[0], ::testing::HasSubstr("zeroshard.mesh.shard says"));
}

TEST(Mesh, SecondaryPartitionsAreGroupsThatShareStates) {
  const std::string key = "zero_optimization.zero_hpz_partition_size",
                    zero = R"("stage": 3, "zero_hpz_partition_size": 2)";
  const Config config = parse_config(json_of(zero, ""), ranks(6)).config;
  EXPECT_TRUE(config.shares_states());
  EXPECT_EQ(config.shard_ranks(), 2);
  const std::string mesh = R"("shard": 2, "outer": "optimizer")";
  EXPECT_EQ(config.digest(), parse_config(json_of(R"("stage": 3)", mesh), ranks(6)).config.digest());
  for (const std::string& same : {mesh, std::string(R"("shard": 2)")})
    EXPECT_EQ(config.digest(), parse_config(json_of(zero, same), ranks(6)).config.digest());
  expect_error(json_of(zero, R"("shard": 3)"), {key, "differs from 3, which zeroshard.mesh.shard says"}, ranks(6));
  expect_error(json_of(zero, R"("outer": "replicate")"), {key, "zeroshard.mesh.outer", "leave one"}, ranks(6));
  expect_error(json_of(zero + R"(, "mics_shard_size": 2)", ""), {key, "mics_shard_size", "leave one"}, ranks(6));
  expect_error(json_of(R"("mics_shard_size": 2)", R"("outer": "optimizer")"),
               {"zero_optimization.mics_shard_size", "zeroshard.mesh.outer", "leave one"}, ranks(6));
  expect_error(json_of(zero, ""), {key, "does not divide the 5 ranks", "1, 5"}, ranks(5));
  for (const char* stage : {"0", "1", "2"})
    expect_error(json_of(concat(R"("zero_hpz_partition_size": 2, "stage": )", stage), ""), {key, "is for stage 3"},
                 ranks(6));
  const ParsedConfig one_group = parse_config(json_of(zero, ""), ranks(2));
  ASSERT_EQ(one_group.without_effect.size(), 1U);
  EXPECT_THAT(one_group.without_effect[0], ::testing::HasSubstr("all 2 ranks are one group"));
  for (const char* off : {"0", "1"})
    EXPECT_EQ(parse_config(json_of(concat(R"("zero_hpz_partition_size": )", off), ""), ranks(6)).config.shard_size, 0);
}

TEST(Mesh, QuantizedWeightsAreForGroupsThatShareStates) {
  const std::string zero = R"("stage": 3, "zero_quantized_weights": true)",
                    mesh = R"("shard": 2, "outer": "optimizer")";
  const auto told = [&](const std::string& of_mesh, const std::string& more) {
    const std::string json = json_of(zero, of_mesh);
    const ParsedConfig parsed = parse_config(json.substr(0, json.size() - 1) + more + "}", ranks(6));
    EXPECT_TRUE(parsed.config.quantized_weights);
    return ::testing::PrintToString(parsed.without_effect);
  };
  const std::string bf16 = R"(, "bf16": {"enabled": true})";
  EXPECT_EQ(told(mesh, bf16), "{}");
  EXPECT_THAT(told(mesh, ""), ::testing::HasSubstr("enable bf16 or fp16"));
  EXPECT_THAT(told(R"("shard": 2)", bf16), ::testing::HasSubstr("zero_hpz_partition_size"));
  EXPECT_THAT(told("", bf16), ::testing::HasSubstr("All other gathers are exact"));
  EXPECT_NE(parse_config(json_of(zero, mesh), ranks(6)).config.digest(),
            parse_config(json_of(R"("stage": 3)", mesh), ranks(6)).config.digest());
}

TEST(Mesh, GroupsThatCannotBeMadeAreRefused) {
  expect_error(R"({"zeroshard": {"mesh": {"shard": 4}}})",
               {"zeroshard.mesh.shard", "4", "does not divide the 6 ranks", "1, 2, 3, 6"}, ranks(6));
  expect_error(R"({"zero_optimization": {"mics_shard_size": 8}})",
               {"zero_optimization.mics_shard_size", "8", "does not divide the 6 ranks"}, ranks(6));
  expect_error(R"({"zeroshard": {"mesh": {"shard": 2}}, "zero_optimization": {"mics_shard_size": 3}})",
               {"zero_optimization.mics_shard_size", "differs from 2, which zeroshard.mesh.shard says"}, ranks(6));
  for (const char* wrong : {"0", "-2", "\"node\"", "2.5", "true"})
    expect_error(concat(R"({"zeroshard": {"mesh": {"shard": )", wrong, "}}}"),
                 {"zeroshard.mesh.shard", "a positive number of ranks, or \"host\""}, ranks(6));
  expect_error(R"({"zeroshard": {"mesh": {"shard": 2, "outer": "gradients"}}})",
               {"zeroshard.mesh.outer", "replicate", "optimizer"}, ranks(6));
  expect_error(R"({"zeroshard": {"mesh": {"replicas": 2}}})", {"zeroshard.mesh.replicas"}, ranks(6));
}

}  // namespace
}  // namespace zeroshard
