#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "zeroshard/activations.h"
#include "zeroshard/plan.h"

// The published tables of the ZeRO paper (arXiv 1910.02054): model states of mixed-precision Adam.
namespace zeroshard {
namespace {

PlanOptions golden_options(int stage, int world_size) {
  PlanOptions options;
  options.stage = stage;
  options.world_size = world_size;
  return options;
}

double model_states(int64_t params, int stage, int world_size) {
  return plan_count(params, golden_options(stage, world_size)).model_states();
}

struct Row {
  int world_size;
  std::array<std::array<double, 3>, 3> gigabytes;  // [model][stage - 1]
};
constexpr std::array<int64_t, 3> kModels{7'500'000'000, 128'000'000'000, 1'000'000'000'000};
// clang-format off
constexpr std::array<Row, 6> kTable1{{
    {1,    {{{120, 120, 120},     {2048, 2048, 2048}, {16000, 16000, 16000}}}},
    {4,    {{{52.5, 41.3, 30},    {896, 704, 512},    {7000, 5500, 4000}}}},
    {16,   {{{35.6, 21.6, 7.5},   {608, 368, 128},    {4750, 2875, 1000}}}},
    {64,   {{{31.4, 16.6, 1.88},  {536, 284, 32},     {4187, 2218, 250}}}},
    {256,  {{{30.4, 15.4, 0.47},  {518, 263, 8},      {4046, 2054, 62.5}}}},
    {1024, {{{30.1, 15.1, 0.12},  {513, 257, 2},      {4011, 2013, 15.6}}}},
}};
// clang-format on

// Psi parameters on N ranks; 12 bytes of optimizer states per parameter.
double paper_formula(double psi, int stage, double n) {
  switch (stage) {
    case 0:
      return 16 * psi;
    case 1:
      return 4 * psi + 12 * psi / n;
    case 2:
      return 2 * psi + 14 * psi / n;
    default:
      return 16 * psi / n;
  }
}

TEST(ZeroPaper, Table1) {
  int cells = 0;
  for (const Row& row : kTable1) {
    for (size_t model = 0; model < kModels.size(); ++model) {
      for (int stage = 1; stage <= 3; ++stage, ++cells) {
        SCOPED_TRACE(::testing::Message()
                     << kModels[model] << " parameters, N " << row.world_size << ", stage " << stage);
        const double bytes = model_states(kModels[model], stage, row.world_size);
        EXPECT_EQ(bytes, paper_formula(double(kModels[model]), stage, row.world_size));
        const double printed = row.gigabytes[model][size_t(stage - 1)];
        // The paper cuts integer cells and rounds cells with decimals.
        if (printed == std::floor(printed)) {
          EXPECT_LT(std::abs(bytes / 1e9 - printed), 1);
        } else {
          EXPECT_LE(std::abs(bytes / 1e9 - printed), 0.051);
        }
      }
    }
  }
  EXPECT_EQ(cells, 54);
}

TEST(ZeroPaper, Figure1) {
  EXPECT_EQ(model_states(7'500'000'000, 0, 64), 120e9);
  EXPECT_EQ(model_states(7'500'000'000, 1, 64), 31'406'250'000);
  EXPECT_EQ(model_states(7'500'000'000, 2, 64), 16'640'625'000);
  EXPECT_EQ(model_states(7'500'000'000, 3, 64), 1'875'000'000);
}

// Table 2: the largest model on 32 GB devices, 64-way data parallel, MP-way model parallel. The paper multiplies the
// rounded first row, so row MP may be off by MP times the first row's rounding.
TEST(ZeroPaper, Table2TheoryColumns) {
  constexpr std::array<double, 4> kFirstRow{2, 7.6, 14.4, 128};
  for (const int model_parallel : {1, 2, 4, 8, 16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(::testing::Message() << "MP " << model_parallel << ", stage " << stage);
      const auto fits = [&](double params) {
        return model_states(int64_t(params / model_parallel), stage, 64) <= 32e9;
      };
      const double printed = kFirstRow[size_t(stage)] * model_parallel * 1e9;
      // Two digits after the point in the first row, cut: 7.64 is printed 7.6 and 14.42 is printed 14.4.
      EXPECT_TRUE(fits(printed));
      EXPECT_FALSE(fits(printed + 0.051e9 * model_parallel));
    }
  }
}

TEST(ZeroPaper, OptimizersAndDTypes) {
  PlanOptions options = golden_options(0, 1);
  const auto bytes_per_param = [&] { return plan_count(1, options).model_states(); };
  EXPECT_EQ(bytes_per_param(), 16);  // K = 12
  options.optimizer_slots = 1;
  EXPECT_EQ(bytes_per_param(), 12);  // K = 8, SGD with momentum
  options.optimizer_slots = 0;
  EXPECT_EQ(bytes_per_param(), 8);  // K = 4, SGD
  options.optimizer_slots = 2;
  options.compute_dtype = DType::kFloat16;
  EXPECT_EQ(bytes_per_param(), 16);
  options.compute_dtype = DType::kFloat32;
  EXPECT_EQ(bytes_per_param(), 16);  // 4 + 4 + 8: no separate master weights
  EXPECT_EQ(plan_count(1, options).master_weights, 0);
}

// Megatron's distributed optimizer counts 18 for bf16 parameters and fp32 gradients: 6 + 12/d.
TEST(ZeroPaper, Fp32GradientsCount18) {
  PlanOptions options = golden_options(1, 4);
  options.wire_dtype = DType::kFloat32;
  EXPECT_EQ(plan_count(1000, options).model_states(), 6 * 1000 + 12 * 1000 / 4);
}

// arXiv 2104.07857, figure 2a: 12 x layers x hidden^2 parameters, 20 bytes each with gradients that are summed in fp32
// beside those in 16 bits; checkpoints of activations in 16 bits, of 32 sequences of 1024 tokens a node. K is 1024.
struct InfinityRow {
  int64_t layers, hidden;
  double states, checkpoints;  // TiB
};
constexpr std::array<InfinityRow, 5> kFigure2a{{{80, 10 << 10, 1.83, 0.05},
                                                {100, 20 << 10, 9.16, 0.12},
                                                {128, 25 << 10, 18.31, 0.20},
                                                {195, 64 << 10, 182.81, 0.76},
                                                {315, 160 << 10, 1845.70, 3.08}}};

TEST(ZeroInfinity, Figure2a) {
  constexpr double kTiB = 1024. * 1024 * 1024 * 1024;
  PlanOptions options = golden_options(0, 1);
  options.grad_accumulation_steps = 2;
  for (const InfinityRow& row : kFigure2a) {
    SCOPED_TRACE(::testing::Message() << row.layers << " layers of " << row.hidden);
    // Of the last row's 101 trillion parameters a tenth is planned: the planner's limit is 100.
    const int64_t tenth = 12 * row.layers * row.hidden * row.hidden / 10;
    EXPECT_NEAR(10 * plan_count(tenth, options).model_states() / kTiB, row.states,
                0.006 * std::max(1., row.states / 100));
    ModelShapes model;
    model.model_type = "gpt2";
    model.hidden_size = row.hidden;
    model.sizes = {.layers = row.layers, .intermediate = 4 * row.hidden, .heads = 128, .head_dim = row.hidden / 128};
    const ActivationOptions node{.batch = 32, .sequence_length = 1024, .checkpointing = true};
    EXPECT_NEAR(plan_activations(model, node).layers / kTiB, row.checkpoints, 0.011);
  }
}

// DeepSpeed's estimate_zero2/3_model_states_mem_needs for 2851e6 parameters, the largest layer 32e6, 8 GPUs, in GiB.
// Theirs counts a whole gradient in 16 bits at stage 2, which here passes through the ring, and four bytes of the
// largest layer at stage 3, which are the rings' here.
TEST(DeepSpeedEstimator, CountsTheSameStates) {
  constexpr double kGiB = 1024. * 1024 * 1024;
  constexpr int64_t kParams = 2'851'000'000, kLargest = 32'000'000;
  const auto on_device = [](int stage, Tier states, Tier parameters) {
    PlanOptions options = golden_options(stage, 8);
    options.on_device = true;
    options.grad_dtype = DType::kFloat32;
    options.state_tier = options.gradient_tier = states;
    options.parameter_tier = parameters;
    return plan_count(kParams, options).total() / kGiB;
  };
  const double params = double(kParams) / kGiB, layer = double(kLargest) / kGiB;
  EXPECT_NEAR(on_device(2, Tier::kDevice, Tier::kDevice) + 2 * params, 15.93, 0.005);
  EXPECT_NEAR(on_device(2, Tier::kHost, Tier::kDevice), 5.31, 0.005);
  EXPECT_NEAR(on_device(3, Tier::kDevice, Tier::kDevice) + 4 * layer, 6.09, 0.005);
  EXPECT_NEAR(on_device(3, Tier::kHost, Tier::kDevice) + 4 * layer, 0.78, 0.005);
  EXPECT_NEAR(on_device(3, Tier::kHost, Tier::kHost) + 4 * layer, 0.12, 0.005);
}

// With rings, padding and buffers: which tiers make Llama 2 70B fit.
TEST(DoesItFit, Llama2On8DevicesOf24GBWithItsStatesOnTheHost) {
  const ModelShapes model = parse_model_shapes(
      R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
          "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": false})",
      "test");
  PlanOptions options = golden_options(3, 8);
  options.on_device = true;
  const double everything = plan_model(model, options).total();
  EXPECT_GT(everything, 140e9);
  options.state_tier = options.gradient_tier = Tier::kHost;
  const PlannedBytes states = plan_model(model, options);
  EXPECT_GT(states.total(), 24e9);  // shards of 17 GB, and rings
  options.parameter_tier = Tier::kHost;
  const PlannedBytes all = plan_model(model, options);
  EXPECT_LT(all.total(), 12e9);
  EXPECT_NEAR(all.host.total(), 140e9, 3e9);  // of each rank: 1.1 TB together
}

TEST(DoesItFit, Llama70BOnEightDevicesOf24GB) {
  const auto bytes = [](const PlanOptions& options) { return plan_count(70'000'000'000, options).total(); };
  const PlanOptions here = golden_options(3, 8);
  EXPECT_EQ(bytes(here), 140e9);
  EXPECT_EQ(plan_count(70'000'000'000, here).parameters, 17.5e9);
  const FitReport report = check_fit(24e9, here, bytes);
  EXPECT_FALSE(report.fits);
  EXPECT_NEAR(report.ratio, 140. / 24, 1e-12);
  EXPECT_EQ(report.lowest_stage, std::nullopt);
  EXPECT_EQ(report.min_world_size, 47);  // 1120 GB / 24 GB = 46.67
  EXPECT_GT(bytes(golden_options(3, 46)), 24e9);
  EXPECT_LE(bytes(golden_options(3, 47)), 24e9);
}

TEST(DoesItFit, LowestStageAndWorldSizes) {
  const auto bytes = [](const PlanOptions& options) { return plan_count(1'000'000'000, options).total(); };
  const FitReport report = check_fit(8e9, golden_options(0, 8), bytes);
  EXPECT_FALSE(report.fits);
  EXPECT_EQ(report.lowest_stage, 1);               // 4 + 12/8 = 5.5 GB
  EXPECT_EQ(report.min_world_size, std::nullopt);  // 16 GB at any world size
  EXPECT_EQ(report.min_world_size_stage_3, 2);
  EXPECT_TRUE(check_fit(5.5e9, golden_options(1, 8), bytes).fits);  // to the byte
  EXPECT_FALSE(check_fit(5.5e9 - 1, golden_options(1, 8), bytes).fits);
}

}  // namespace
}  // namespace zeroshard
