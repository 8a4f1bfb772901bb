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
  expect_error(R"({"zeroshard": {"mesh": {"shard": 2, "outer": "optimizer"}}})",
               {"zeroshard.mesh.outer", "replicate", "not supported"}, ranks(6));
  expect_error(R"({"zeroshard": {"mesh": {"replicas": 2}}})", {"zeroshard.mesh.replicas"}, ranks(6));
}

}  // namespace
}  // namespace zeroshard
