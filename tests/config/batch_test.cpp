#include "base/format.h"
#include "support.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

std::string json_of(std::optional<int64_t> train, std::optional<int64_t> micro, std::optional<int64_t> accumulation) {
  std::string json = "{";
  if (train) json += concat("\"train_batch_size\": ", *train, ",");
  if (micro) json += concat("\"train_micro_batch_size_per_gpu\": ", *micro, ",");
  if (accumulation) json += concat("\"gradient_accumulation_steps\": ", *accumulation, ",");
  return json + "}";
}

ConfigContext strict(int world_size) {
  ConfigContext context;
  context.world_size = world_size;
  return context;
}

TEST(Batch, AnyTwoGiveTheThird) {
  for (const uint64_t seed : seeds(300)) {
    SeededRandom random(seed);
    const auto up_to = [&](int max) { return 1 + int64_t(random() % unsigned(max)); };
    const int64_t micro = up_to(64), accumulation = up_to(16);
    const int world_size = int(up_to(512));
    const int64_t train = micro * accumulation * world_size;
    for (const std::string& json : {json_of(train, micro, accumulation), json_of(train, micro, {}),
                                    json_of(train, {}, accumulation), json_of({}, micro, accumulation)}) {
      const Config config = parse_config(json, strict(world_size)).config;
      EXPECT_EQ(config.train_batch_size, train);
      EXPECT_EQ(config.micro_batch_size, micro);
      EXPECT_EQ(config.grad_accumulation_steps, accumulation);
      EXPECT_EQ(config.world_size, world_size);
    }
    // One more sample never fits the other two.
    if (world_size * micro > 1) expect_error(json_of(train + 1, micro, accumulation), {"!="}, strict(world_size));
  }
}

TEST(Batch, SeveralMicroBatchesAreSummedInFp32) {
  Config config = parse_config(R"({"train_batch_size": 8, "bf16": {"enabled": true}})", strict(1)).config;
  EXPECT_EQ(config.reduced_grad_dtype(1), std::nullopt);
  EXPECT_EQ(config.reduced_grad_dtype(2), DType::kFloat32);
  config.grad_accum_dtype = DType::kBFloat16;
  EXPECT_EQ(config.reduced_grad_dtype(1), DType::kBFloat16);
  EXPECT_EQ(config.reduced_grad_dtype(2), DType::kBFloat16);
}

TEST(Batch, OneGivesTheOthersWithoutAccumulation) {
  const Config from_train = parse_config(json_of(12, {}, {}), strict(4)).config;
  EXPECT_EQ(from_train.micro_batch_size, 3);
  EXPECT_EQ(from_train.grad_accumulation_steps, 1);
  const Config from_micro = parse_config(json_of({}, 3, {}), strict(4)).config;
  EXPECT_EQ(from_micro.train_batch_size, 12);
  EXPECT_EQ(from_micro.grad_accumulation_steps, 1);
}

TEST(Batch, TheErrorIsTheOneUsersKnow) {
  expect_error(json_of(16, 4, 2),
               {"Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
                "gradient_acc_step * world_size 16 != 4 * 2 * 3"},
               strict(3));
}

TEST(Batch, AWorldSizeThatDoesNotDivideIsNamed) {
  expect_error(json_of(10, {}, {}), {"train_batch_size = 10", "10 != 3 * 1 * 3", "train_micro_batch_size_per_gpu was"},
               strict(3));
  expect_error(json_of(10, 2, {}), {"10 != 2 * 1 * 3", "gradient_accumulation_steps was"}, strict(3));
  expect_error(json_of(2, {}, {}), {"2 != 0 * 1 * 4"}, strict(4));
}

TEST(Batch, NeitherSizeIsAnErrorUnlessTheContextHasADefault) {
  for (const char* json : {"{}", R"({"gradient_accumulation_steps": 4})",
                           R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})"}) {
    expect_error(json, {"either train_batch_size or train_micro_batch_size_per_gpu"}, strict(2));
  }
  const Config config = parse_config(R"({"gradient_accumulation_steps": 4})", ranks(2)).config;
  EXPECT_EQ(config.micro_batch_size, 1);
  EXPECT_EQ(config.train_batch_size, 8);
}

TEST(Batch, AutoIsInferred) {
  const ParsedConfig parsed = parse_config(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2})",
      strict(5));
  EXPECT_EQ(parsed.config.train_batch_size, 30);
  EXPECT_EQ(value_of(parsed, "train_batch_size").value, "30");
  EXPECT_THAT(value_of(parsed, "train_batch_size").origin, ::testing::StartsWith("auto: derived"));
  EXPECT_EQ(value_of(parsed, "train_micro_batch_size_per_gpu").origin, "file");
}

TEST(Batch, ProductsThatOverflowAreRefused) {
  expect_error(json_of({}, 4'000'000'000'000'000'000, 4), {"train_batch_size", "64 bits"}, strict(8));
  expect_error(json_of(16, 4'000'000'000'000'000'000, 4), {"64 bits"}, strict(8));
}

TEST(Batch, RanksOfASequenceGroupCountAsOne) {
  const Config config =
      parse_config(R"({"sequence_parallel_size": 2, "train_batch_size": 12, "gradient_accumulation_steps": 3})",
                   strict(4))
          .config;
  EXPECT_EQ(config.sequence_parallel_size, 2);
  EXPECT_EQ(config.micro_batch_size, 2);
  EXPECT_EQ(config.world_size, 4);
  EXPECT_NE(config.digest(), parse_config(R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2,
                                              "gradient_accumulation_steps": 3})",
                                          strict(2))
                                 .config.digest());
  EXPECT_EQ(parse_config(R"({"sequence_parallel_size": 0, "train_batch_size": 4})", strict(4)).config.micro_batch_size,
            1);
  expect_error(R"({"sequence_parallel_size": 4, "train_batch_size": 4})",
               {"sequence_parallel_size", "4", "does not divide the 6 ranks", "1, 2, 3, 6"}, strict(6));
  expect_error(R"({"sequence_parallel_size": -1, "train_batch_size": 4})", {"sequence_parallel_size"}, strict(4));
}

TEST(Batch, SequenceGroupsThatTheCallerMadeCount) {
  ConfigContext context = strict(4);
  context.sequence_parallel_size = 2;
  for (const char* given : {"", R"("sequence_parallel_size": 2,)", R"("sequence_parallel_size": null,)"}) {
    const Config config = parse_config(concat("{", given, R"("train_batch_size": 4})"), context).config;
    EXPECT_EQ(config.sequence_parallel_size, 2);
    EXPECT_EQ(config.micro_batch_size, 2);
  }
  expect_error(R"({"sequence_parallel_size": 4, "train_batch_size": 4})",
               {"sequence_parallel_size = 4", "differs from 2"}, context);
}

}  // namespace
}  // namespace zeroshard
