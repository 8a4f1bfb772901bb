#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "support/comm_world.h"
#include "support/configuration.h"
#include "zeroshard/error.h"
#include "zeroshard/nn.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_local_world;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  nn::Linear a = register_module("a", nn::Linear(8, 8)), b = register_module("b", nn::Linear(8, 8));
  at::Tensor forward(const at::Tensor& x) { return b(a(x)); }
};

// Two blocks, a head that is tied to the first layer by memory, and a frozen scale of the model's own.
struct ModelImpl : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(nn::LinearOptions(8, 8).bias(false)));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(8, 8));
  at::Tensor scale = register_parameter("scale", at::ones({8}), /*requires_grad=*/false);
  ModelImpl() {
    for (int i = 0; i < 2; ++i) blocks->push_back(std::make_shared<BlockImpl>());
    head->weight.set_data(first->weight);
  }
};

std::vector<std::string> unit_names(ModuleUnits& units) {
  std::vector<std::string> names;
  for (const UnitDefinition& unit : units.definitions()) names.push_back(unit.name);
  return names;
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ModuleUnits, FollowTheModulesAndJoinTiedParameters) {
  ModelImpl model;
  ModuleUnits units(model);
  EXPECT_THAT(unit_names(units), ElementsAre("root", "first", "blocks.0", "blocks.1", "head"));
  const auto& definitions = units.definitions();
  EXPECT_FALSE(definitions[0].params[0].requires_grad);
  EXPECT_THAT(definitions[1].params[0].names, ElementsAre("first.weight", "head.weight"));
  EXPECT_EQ(definitions[1].tensors()[0].size(), 2);
  EXPECT_EQ(definitions[2].params.size(), 4);
  EXPECT_THAT(definitions[4].params[0].names, ElementsAre("head.bias"));
  EXPECT_EQ(definitions[0].parent, -1);
  EXPECT_EQ(definitions[3].parent, 0);
  EXPECT_THAT(units.of(*model.head), ElementsAre(1, 4));
  EXPECT_THAT(units.of(*model.blocks->ptr(1)), ElementsAre(3));
  EXPECT_THAT(units.of(*model.blocks), ElementsAre());
}

TEST(ModuleUnits, ClassesMayBeNamed) {
  ModelImpl model;
  ModuleUnits units(model, {"Linear"});
  EXPECT_THAT(unit_names(units),
              ElementsAre("root", "first", "blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b", "head"));
  EXPECT_THAT(message([&] { ModuleUnits(model, {"Layer"}); }),
              HasSubstr("names 'Layer', but the model has no such module; it has Block, Linear, Model, ModuleList"));
}

// The way out for a forward that uses what is in several modules.
TEST(ModuleUnits, TheModelMayBeAUnit) {
  ModelImpl model;
  ModuleUnits whole(model, {"Model"});
  EXPECT_THAT(unit_names(whole), ElementsAre("root"));
  EXPECT_THAT(whole.of(model), ElementsAre(0));
  ModuleUnits units(model, {"Model", "Block"});
  EXPECT_THAT(unit_names(units), ElementsAre("root", "blocks.0", "blocks.1"));
  EXPECT_EQ(units.definitions()[2].parent, 0);
}

TEST(ModuleUnits, WrongCallsSayWhichModuleToCall) {
  ModelImpl model;
  const ModuleUnits units(model);
  const auto block = model.blocks->ptr<BlockImpl>(0);
  EXPECT_THAT(message([&] { units.of(*block->a); }), HasSubstr("module 'blocks.0.a' is inside the unit 'blocks.0'"));
  EXPECT_THAT(message([&] { units.of(*nn::Linear(1, 1)); }),
              HasSubstr("a Linear was called that was not in the model"));
}

EngineOptions stage_3() {
  constexpr const char* kJson = R"({"optimizer": {"type": "SGD", "params": {"lr": 0.125}}, "gradient_clipping": 0,
                                    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})";
  EngineOptions options;
  options.config = testing::configuration(kJson, /*world_size=*/2).config;
  return options;
}

at::Tensor forward(Engine& engine, const ModuleUnits& units, ModelImpl& model, const at::Tensor& x) {
  const auto call = [&](auto& module, const at::Tensor& in) {
    for (const size_t unit : units.of(*module)) engine.pre_forward(unit);
    at::Tensor out = module->forward(in);
    for (const size_t unit : units.of(*module)) engine.post_forward(unit, {out});
    return out;
  };
  at::Tensor y = call(model.first, x);
  for (size_t i = 0; i < 2; ++i) {
    auto block = model.blocks->ptr<BlockImpl>(i);
    y = call(block, y);
  }
  return call(model.head, y);
}

// `body` runs on both ranks, in a forward pass at stage 3.
void in_forward_of_two(const std::function<void(Engine&, ModelImpl&)>& body) {
  const auto errors = run_local_world(2, [&](Comm& comm) {
    ModelImpl model;
    ModuleUnits units(model);
    Engine engine(units.definitions(), stage_3(), comm, comm);
    engine.begin_forward(true);
    body(engine, model);
    EXPECT_THAT(message([&] { forward(engine, units, model, at::ones({1, 8})); }), "");
  });
  EXPECT_THAT(errors, ElementsAre("", ""));
}

TEST(ModuleUnits, AForgottenUnitNamesItsParameter) {
  in_forward_of_two([](Engine&, ModelImpl& model) {
    EXPECT_THAT(message([&] {
                  model.blocks->ptr<BlockImpl>(0)->forward(at::ones({1, 8}));
                }),
                HasSubstr("parameter 'blocks.0.a.bias' is sharded"));
  });
}

TEST(ModuleUnits, AUnitThatReturnsItsParameterNamesTheWayOut) {
  in_forward_of_two([](Engine& engine, ModelImpl& model) {
    EXPECT_THAT(message([&] { engine.unit(2, [&] { return model.blocks->ptr<BlockImpl>(0)->a->weight.t(); }); }),
                HasSubstr("unit 'blocks.0' returned a parameter of its own or a view of one"));
  });
}

TEST(ModuleUnits, AModuleIsNotTakenForOneThatIsGone) {
  ModelImpl model;
  const ModuleUnits units(model);
  model.head = model.replace_module("head", nn::Linear(2, 2));
  std::vector<nn::Linear> others;  // one of them has the address of the old head, unless that is kept
  for (int i = 0; i < 50; ++i) {
    others.emplace_back(nn::LinearOptions(2, 2));
    EXPECT_THAT(message([&] { units.of(*others.back()); }), HasSubstr("was not in the model"));
  }
}

// Both ranks have the same batch, so that a step must be that of one process.
TEST(ModuleUnits, TiedWeightsTrainAsOneParameter) {
  torch::manual_seed(1);
  const at::Tensor initial = at::ones({8, 8}).uniform_(-1, 1), x = at::ones({4, 8}).uniform_(-1, 1);
  const at::Tensor weight = initial.clone().requires_grad_();
  x.matmul(weight.t()).matmul(weight.t()).square().mean().backward();
  const at::Tensor expected = initial - 0.125 * weight.grad();

  const auto errors = run_local_world(2, [&](Comm& comm) {
    struct TiedImpl : nn::Module {
      nn::Linear first = register_module("first", nn::Linear(nn::LinearOptions(8, 8).bias(false)));
      nn::Linear head = register_module("head", nn::Linear(nn::LinearOptions(8, 8).bias(false)));
    } model;
    model.first->weight.set_data(initial.clone());
    model.head->weight.set_data(model.first->weight);
    ModuleUnits units(model);
    Engine engine(units.definitions(), stage_3(), comm, comm);
    engine.begin_forward(true);
    engine.backward(engine.unit(0, [&] { return model.head(model.first(x)).square().mean(); }));
    EXPECT_TRUE(engine.step().applied);
    engine.gather({0});
    EXPECT_TRUE(at::allclose(model.first->weight, expected, /*rtol=*/1e-5, /*atol=*/1e-6));
    EXPECT_FALSE(at::allclose(model.first->weight, initial));
    EXPECT_TRUE(at::equal(model.first->weight, model.head->weight));
    engine.release({0});
    comm.barrier("end of test");  // threads read each other's shards in place, and this one dies with the engine
  });
  EXPECT_THAT(errors, ElementsAre("", ""));
}

}  // namespace
}  // namespace zeroshard
