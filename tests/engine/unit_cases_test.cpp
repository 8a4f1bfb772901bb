#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>

#include "support/cases.h"
#include "zeroshard/error.h"
#include "zeroshard/nn.h"

// Units are found as in Python: the cases of tests/cases/units.json.
namespace zeroshard {
namespace {

using Json = nlohmann::ordered_json;
namespace nn = torch::nn;

struct AnyImpl : nn::Module {
  using nn::Module::Module;
};

// Makes the modules of one case.
class Maker {
 public:
  std::shared_ptr<nn::Module> make(const Json& spec) {
    const std::string kind = spec.at(0);
    std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>> children;
    if (spec.size() > 2)
      for (const auto& [name, child] : spec.at(2).items()) children.emplace_back(name, make(child));
    if (kind == "ModuleList") return fill(std::make_shared<nn::ModuleListImpl>(), children);
    if (kind == "Sequential") return fill(std::make_shared<nn::SequentialImpl>(), children);
    auto module = std::make_shared<AnyImpl>(kind);
    for (const auto& [name, param] : spec.at(1).items()) module->register_parameter(name, parameter(param));
    return fill(module, children);
  }

 private:
  template <typename Module, typename Children>
  static std::shared_ptr<nn::Module> fill(std::shared_ptr<Module> module, const Children& children) {
    for (const auto& [name, child] : children) module->register_module(name, child);
    return module;
  }

  at::Tensor parameter(const Json& spec) {
    if (!spec.is_string()) {
      const at::Tensor& memory = elements(spec.at(0));
      return memory.as_strided(spec.at(2).get<std::vector<int64_t>>(), spec.at(3).get<std::vector<int64_t>>(),
                               spec.at(1).get<int64_t>());
    }
    at::Tensor& whole = whole_[spec];
    if (!whole.defined()) whole = elements(spec).view({2, 3});
    return whole;
  }

  at::Tensor& elements(const std::string& name) {
    at::Tensor& memory = memory_[name];
    if (!memory.defined()) memory = at::zeros({6});
    return memory;
  }

  std::map<std::string, at::Tensor> memory_, whole_;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "=") + name;
  return text;
}

Json units_of(ModuleUnits& units) {
  Json found = Json::array();
  const auto& definitions = units.definitions();
  for (const UnitDefinition& unit : definitions) {
    Json params = Json::array();
    for (const ParamDefinition& param : unit.params) params.push_back(joined(param.names));
    const Json parent = unit.parent < 0 ? Json() : Json(definitions[size_t(unit.parent)].name);
    found.push_back({unit.name, parent, params});
  }
  return found;
}

TEST(UnitCases, AreThoseOfTheTable) {
  for (const Json& each : testing::read_cases("units")) {
    SCOPED_TRACE(each.at("case").get<std::string>());
    const auto model = Maker().make(each.at("model"));
    const auto classes = each.value("unit_classes", std::vector<std::string>());
    try {
      ModuleUnits units(*model, classes);
      ASSERT_TRUE(each.contains("units"));
      const Json& expected = each["units"].is_object() ? each["units"].at("cpp") : each["units"];
      EXPECT_EQ(units_of(units), expected);
    } catch (const ValueError& error) {
      const std::string expected = each.value("error", std::string("no error"));
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace zeroshard
