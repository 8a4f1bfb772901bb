// What engines hold on simulated devices is what is planned.
#include "support/accelerator/memory.h"
#include "accelerator/support.h"
#include "base/align.h"
#include "device/flat_buffer.h"
#include "engine/memory_needs.h"
#include "hooks/autograd_hooks.h"
#include "support/accelerator/device.h"
#include "support/accelerator/kernels.h"
#include "world/support.h"
#include "zeroshard/error.h"
#include "zeroshard/plan.h"

namespace zeroshard::accelerator {
namespace {

using test::kUnits;
using test::Scenario;

// Of a rank of the scenario, whose model is of fp32.
struct Plan {
  Plan(const Scenario& scenario, const std::vector<UnitDefinition>& units) {
    const Config& config = scenario.config;
    std::vector<UnitLayout> layouts;
    for (const UnitDefinition& unit : units) {
      std::vector<ParamSpec> params;
      for (const ParamDefinition& param : unit.params)
        params.push_back({param.names, param.shape, config.compute_dtype, param.requires_grad});
      layouts.push_back(make_unit_layout(unit.name, std::move(params), scenario.world_size));
    }
    PlanOptions options = plan_options(config);
    options.world_size = scenario.world_size;
    options.exchange_needs_scratch = scenario.world_size > 1;
    options.on_device = true;
    const PlanReport report = plan_ledger(layouts, options);
    const std::vector<UnitOrigin> origins = origins_on_device(units);
    for (const UnitOrigin& origin : origins) model_bytes += origin.device_bytes;
    temporaries = report.bytes.at(Category::kTemporaries, Tier::kDevice);
    held = report.bytes.total(Tier::kDevice) - temporaries;
    peak = init_peak(layouts, report, origins);
  }

  int64_t model_bytes = 0, peak = 0;
  int64_t held = 0;         // for the whole run
  int64_t temporaries = 0;  // of a step
};

class DeviceMemory : public ::testing::TestWithParam<std::tuple<DType, int, int>> {
 protected:
  void SetUp() override {
    start();
    use_own_kernels(true);
  }
  void TearDown() override {
    for (int i = 0; i < kDevices; ++i) Streams::get().wait_for_device(i);
    use_own_kernels(true);
  }
  static Scenario scenario() {
    const auto [dtype, world_size, stage] = GetParam();
    Scenario scenario = test::make_scenario(world_size, stage);
    scenario.config.compute_dtype = dtype;
    return on_devices(scenario);
  }
};

// Dtype, ranks and stage.
std::vector<std::tuple<DType, int, int>> memory_cases() {
  constexpr DType kSingle = DType::kFloat32, kHalf = DType::kBFloat16;
  std::vector<std::tuple<DType, int, int>> all;
  for (const DType dtype : {kSingle, kHalf})
    for (const int ranks : {1, 3})
      for (const int stage : {0, 1, 2, 3}) all.emplace_back(dtype, ranks, stage);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Stages, DeviceMemory, ::testing::ValuesIn(memory_cases()));

void run(const Scenario& scenario, const std::function<void(test::Rank&)>& body) {
  test::ThreadWorld world(scenario);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    set_current_device(rank.gather.rank());
    body(rank);
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
}

TEST_P(DeviceMemory, BuildingAnEnginePeaksAsPlanned) {
  for (const int64_t ballast : {0, 100'000}) {  // elements of each block but the head
    for (const int64_t persistent : {0, 1'000'000}) {
      Scenario model = scenario();
      model.model.ballast = ballast;
      model.config.persistence_threshold = persistent;
      run(model, [](test::Rank& rank) {
        const Plan plan(rank.scenario, rank.model.definitions());
        const int own = rank.gather.rank();
        const int64_t others = allocated_bytes(own) - plan.model_bytes;
        reset_peak(own);
        rank.make_engine();
        EXPECT_EQ(peak_bytes(own) - others, plan.peak) << rank.scenario.text();
        EXPECT_EQ(allocated_bytes(own) - others, plan.held) << rank.scenario.text();
      });
    }
  }
}

MemoryLine line_of(const Engine& engine, const std::string& category) {
  for (const MemoryLine& line : engine.memory())
    if (line.category == category) return line;
  return {category, "device", 0, 0};
}

// Between its barriers a step allocates nothing but what the ledger calls temporaries.
TEST_P(DeviceMemory, AStepNeedsThePlannedTemporaries) {
  run(scenario(), [](test::Rank& rank) {
    const Plan plan(rank.scenario, rank.model.definitions());
    rank.make_engine();
    const int own = rank.gather.rank();
    for (int step = 0; step < 3; ++step) {
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(test::loss_of(rank.model, rank.scenario, own, step, 0, rank.engine.get()));
      const int64_t before = allocated_bytes(own);
      reset_peak(own);
      rank.engine->step();
      EXPECT_GE(peak_bytes(own) - before, kSquaresBytes);
      EXPECT_LE(peak_bytes(own) - before, plan.temporaries) << rank.scenario.text();
      EXPECT_EQ(allocated_bytes(own), before);
    }
    const MemoryLine line = line_of(*rank.engine, "temporaries");
    EXPECT_EQ(line.planned, plan.temporaries);
    EXPECT_LE(line.measured_peak, plan.temporaries) << rank.scenario.text();
    if (own == 0) {  // the padding is in the last shards
      EXPECT_EQ(line.measured_peak, plan.temporaries) << rank.scenario.text();
    }
  });
}

// The most that a forward and a backward of the rank's model need beyond what is there before them. Without an engine
// gradients are freed as they come.
int64_t peak_of_a_pass(test::Rank& rank, Engine* engine) {
  const int own = rank.gather.rank();
  const test::Batch batch = test::batch_of(rank.scenario, own, 0, 0);
  const int64_t before = allocated_bytes(own);
  reset_peak(own);
  if (engine) engine->begin_forward(/*training=*/true);
  const at::Tensor loss = test::loss_of(rank.model, rank.scenario, own, 0, batch, engine);
  engine ? engine->backward(loss) : loss.backward();
  return peak_bytes(own) - before;
}

// Beyond what the model needs by itself, and what the ledger has.
TEST_P(DeviceMemory, APassNeedsTheModelsActivationsAndThePlannedTemporaries) {
  run(scenario(), [](test::Rank& rank) {
    int64_t plain = 0;
    {
      const at::ScalarType type = to_scalar_type(rank.scenario.config.compute_dtype);
      test::Rank alone(rank.scenario, rank.gather, rank.reduce);
      std::vector<GradHook> hooks;
      for (const auto& unit : alone.model.params()) {
        for (at::Tensor param : unit) {
          param.set_data(param.detach().to(type));
          hooks.push_back({param, {[] {}, [](const at::Tensor&) {}}});
        }
      }
      plain = peak_of_a_pass(alone, nullptr);
    }
    const Plan plan(rank.scenario, rank.model.definitions());
    rank.make_engine();
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_LE(peak_of_a_pass(rank, rank.engine.get()), plain + plan.temporaries) << rank.scenario.text();
      rank.engine->step();
    }
  });
}

// Where the head has no gradients, the buckets of all blocks wait for its turn.
TEST_P(DeviceMemory, GradientsOfOneBucketWaitAtATime) {
  Scenario without_head = scenario();
  without_head.skip = [](int, int step, size_t unit) { return step % 2 == 1 && unit == kUnits - 1; };
  run(without_head, [](test::Rank& rank) {
    rank.make_engine();
    for (int step = 0; step < 2; ++step) rank.train_step(step);
    const MemoryLine line = line_of(*rank.engine, "temporaries");
    EXPECT_LE(line.measured_peak, line.planned) << rank.scenario.text();
  });
}

// A device without kernels of zeroshard's. Beyond the plan are exact squares (fp64, a block of 1024 elements for each
// shard's) and what LibTorch's optimizer makes of a unit.
TEST_P(DeviceMemory, LibTorchsOperationsNeedAFewBuffersOfAUnitMore) {
  use_own_kernels(false);
  run(scenario(), [](test::Rank& rank) {
    rank.make_engine();
    const int own = rank.gather.rank();
    rank.engine->begin_forward(/*training=*/true);
    rank.engine->backward(test::loss_of(rank.model, rank.scenario, own, 0, 0, rank.engine.get()));
    const int64_t before = allocated_bytes(own);
    reset_peak(own);
    rank.engine->step();
    int64_t numel = 0, largest = 0;
    for (const UnitDefinition& unit : rank.model.definitions()) {
      int64_t of_unit = 0;
      for (const ParamDefinition& param : unit.params) {
        int64_t product = 1;
        for (const int64_t size : param.shape) product *= size;
        of_unit += product;
      }
      numel += align_up(of_unit, kBlockNumel);
      largest = std::max(largest, align_up(of_unit, kBlockNumel));
    }
    const int64_t squares = (numel + kBlockNumel * int64_t(kUnits)) * 8 + 64 * 1024, update = 3 * 4 * largest;
    EXPECT_LE(peak_bytes(own) - before, std::max(squares, update));
    EXPECT_EQ(allocated_bytes(own), before);
  });
}

// No buffer is gathered into and nothing is copied: the batch is there before.
TEST(DeviceMemoryOfOneRank, NothingIsCopiedOrExchanged) {
  start();
  use_own_kernels(true);
  for (int stage = 0; stage <= 3; ++stage) {
    run(on_devices(test::make_scenario(1, stage)), [stage](test::Rank& rank) {
      rank.make_engine();
      EXPECT_EQ(line_of(*rank.engine, "gather ring").measured_peak, 0);
      EXPECT_EQ(line_of(*rank.engine, "reduce ring").measured_peak, 0);
      for (int step = 0; step < 3; ++step) {
        const test::Batch batch = test::batch_of(rank.scenario, 0, step, 0);
        const Counts before = Streams::get().counts();
        const test::Model plain(rank.scenario.model, /*seed=*/1, device(0));
        const Counts made = Streams::get().counts();
        test::loss_of(plain, rank.scenario, 0, step, batch, nullptr).backward();
        const Counts without = Streams::get().counts();
        rank.engine->begin_forward(/*training=*/true);
        const at::Tensor loss = test::loss_of(rank.model, rank.scenario, 0, step, batch, rank.engine.get());
        rank.engine->backward(loss);
        const Counts pass = Streams::get().counts();
        EXPECT_EQ(pass.copies - without.copies, without.copies - made.copies) << "stage " << stage;
        EXPECT_GT(made.copies, before.copies);
        rank.engine->step();
        EXPECT_EQ(Streams::get().counts().copies - pass.copies, 1) << "the limbs of the squares";
      }
    });
  }
}

TEST(DeviceBuffers, AskNoDeviceForTheirAddresses) {
  start();
  Ledger ledger;
  set_current_device(0);
  const FlatBuffer nothing(0, device(1), ledger, Category::kParameters);
  const at::Tensor none = nothing.view(at::kFloat, 0, 0);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_EQ(none.device(), device(1));
  // Of no device: its own would refuse it.
  EXPECT_EQ(view_memory(reinterpret_cast<void*>(4096), 3, at::kFloat, device(1)).device(), device(1));
  set_current_device(2);
  const FlatBuffer current(2048, at::Device(c10::kPrivateUse1), ledger, Category::kParameters);
  EXPECT_EQ(current.device(), device(2));
  EXPECT_EQ(current.view(at::kFloat, 0, 512).device(), device(2));
  set_current_device(0);
}

// A device without an index is the one that is current.
TEST(DeviceBuffers, AnEngineTakesTheCurrentDevice) {
  start();
  use_own_kernels(true);
  for (const int stage : {0, 3}) {
    Scenario scenario = test::make_scenario(1, stage);
    scenario.config.shard_one_rank = true;
    const test::Result expected = test::train(scenario);
    scenario.device_of = [](int) {
      set_current_device(2);
      return at::Device(c10::kPrivateUse1);
    };
    scenario.make_world = [](int) {
      set_current_device(2);
      std::vector<std::unique_ptr<Comm>> comms;
      comms.push_back(make_comm(std::string(), at::Device(c10::kPrivateUse1)));
      return comms;
    };
    const test::Result result = test::train(scenario);
    ASSERT_FALSE(HasFailure());
    EXPECT_TRUE(expected.values.equal(result.values));
  }
  set_current_device(0);
}

// Groups without elements: a trained one and a frozen one beside others, and a unit that has nothing else.
void add_nothing(std::vector<UnitDefinition>& units, at::Device device) {
  const auto make = [device](bool trains) {
    return at::empty({0, 3}, at::TensorOptions(at::kFloat).device(device)).set_requires_grad(trains);
  };
  UnitDefinition empty;
  empty.name = "empty";
  const std::vector<std::vector<at::Tensor>> own{{make(true)}, {make(false)}};
  empty.params = {{{"trained"}, {0, 3}}, {{"frozen"}, {0, 3}, at::kFloat, /*requires_grad=*/false}};
  empty.tensors = [own] { return own; };
  units.push_back(std::move(empty));
  const auto inner = units[1].tensors;
  units[1].params.push_back({{"frozen beside others"}, {0, 3}, at::kFloat, /*requires_grad=*/false});
  units[1].tensors = [inner, tensor = make(false)] {
    auto tensors = inner();
    tensors.push_back({tensor});
    return tensors;
  };
}

TEST_P(DeviceMemory, GroupsWithoutElementsTrain) {
  std::vector<at::Tensor> values;
  for (const auto& [empty, offloads] : {std::pair{false, false}, {true, false}, {true, true}}) {
    Scenario made = scenario();
    if (offloads && made.config.stage > 0) made.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
    test::ThreadWorld world(made);
    const auto errors = world.run([empty = empty](test::Rank& rank) {
      at::set_num_threads(1);
      EngineOptions options;
      options.config = rank.scenario.config;
      options.device = rank.scenario.device_of(rank.gather.rank());
      std::vector<UnitDefinition> units = rank.model.definitions();
      if (empty) add_nothing(units, options.device);
      rank.engine = std::make_unique<Engine>(std::move(units), std::move(options), rank.gather, rank.reduce);
      for (int step = 0; step < 2; ++step) rank.train_step(step);
      rank.finish();
    });
    for (const std::string& error : errors) ASSERT_EQ(error, "");
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1]));
  EXPECT_TRUE(values[0].equal(values[2]));
}

// The message with which a rank refuses the scenario; "" where it makes its engine.
std::vector<std::string> refusals(const Scenario& scenario) {
  std::vector<std::string> said(size_t(scenario.world_size));
  run(scenario, [&](test::Rank& rank) {
    try {
      rank.make_engine();
    } catch (const ConfigError& error) {
      said[size_t(rank.gather.rank())] = error.what();
    }
  });
  return said;
}

// Device and host have a limit each.
TEST_P(DeviceMemory, APlanFitsIntoTheLimitsOfItsTiers) {
  Scenario limited = scenario();
  if (limited.config.stage == 0) return;
  limited.model.ballast = 100'000;  // so that states weigh more than buffers
  const auto planned = [](const Scenario& of, const std::string& tier) {
    int64_t sum = 0;
    for (const MemoryLine& line : test::train(of).memory) sum += line.tier == tier ? line.planned : 0;
    return sum;
  };
  Scenario offloading = limited;
  offloading.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  const int64_t device = planned(offloading, "device"), host = planned(offloading, "host");
  ASSERT_GT(host, 0);
  ASSERT_GT(planned(limited, "device"), device);
  offloading.config.offload.device_memory = limited.config.offload.device_memory = device;
  offloading.config.offload.host_memory = limited.config.offload.host_memory = host;
  test::train(offloading);
  ASSERT_FALSE(HasFailure()) << offloading.text();
  for (const std::string& text : refusals(limited)) {
    EXPECT_NE(text.find("of the device's memory"), text.npos) << text;
    EXPECT_NE(text.find("The smallest change that fits: zero_optimization."), text.npos) << text;
  }
  offloading.config.offload.host_memory = host - 1;
  for (const std::string& text : refusals(offloading))
    EXPECT_NE(text.find(concat("needs ", host, " bytes")), text.npos) << text;
}

// States leave a device that has no room for them, and only then.
TEST_P(DeviceMemory, AutoOffloadsWhatDoesNotFit) {
  Scenario automatic = scenario();
  if (automatic.config.stage == 0) return;
  automatic.model.ballast = 100'000;
  automatic.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kAuto;
  const auto planned = [](const test::Result& of, const std::string& tier) {
    int64_t sum = 0;
    for (const MemoryLine& line : of.memory) sum += line.tier == tier ? line.planned : 0;
    return sum;
  };
  const test::Result roomy = test::train(automatic);
  EXPECT_EQ(planned(roomy, "host"), 0);
  automatic.config.offload.device_memory = planned(roomy, "device");
  EXPECT_EQ(planned(test::train(automatic), "host"), 0);
  --*automatic.config.offload.device_memory;
  const test::Result narrow = test::train(automatic);
  EXPECT_GT(planned(narrow, "host"), 0);
  EXPECT_LT(planned(narrow, "device"), planned(roomy, "device"));
  ASSERT_FALSE(HasFailure()) << automatic.text();
}

}  // namespace
}  // namespace zeroshard::accelerator
