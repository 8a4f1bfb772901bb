#include "checkpoint_torch/saved_optimizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kAdvice =
    ". From Python, load_checkpoint(..., load_optimizer_states=False) takes the weights and begins with new states; "
    "with "
    "`zeroshard train`, start anew in another output directory";

std::string name_of(OptimizerConfig::Type type) {
  using Type = OptimizerConfig::Type;
  switch (type) {
    case Type::kAdam:
      return "Adam";
    case Type::kAdamW:
      return "AdamW";
    case Type::kSgd:
      return "SGD";
    case Type::kLion:
      return "Lion";
    case Type::kAdagrad:
      return "Adagrad";
    case Type::kMuon:
      return "Muon";
  }
  return {};
}

std::string describe(const std::string& name, bool outside) {
  return outside ? name + " (torch's own, outside the engine)" : name;
}

// Returns whether the two names mean the same optimizer. `outside` says whether it is an external one. Names of the
// engine's own optimizers may differ in upper and lower case, because earlier versions wrote them in upper case.
bool same_name(const std::string& saved, const std::string& mine, bool outside) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  return saved == mine || (!outside && std::equal(saved.begin(), saved.end(), mine.begin(), mine.end(),
                                                  [&](char a, char b) { return lower(a) == lower(b); }));
}

Json saved_in(const Manifest& manifest) {
  const Json state = Json::parse(manifest.state);
  for (const char* part : {"core", "front"}) {
    const Json here = state.value(part, Json::object());
    const Json found = here.is_object() ? here.value("optimizer", Json()) : Json();
    if (found.is_object() && found.value("name", Json()).is_string()) return found;
  }
  return {};
}

// Returns the first tensor of the checkpoint that is a state of one of the engine's optimizers, but not of `mine`; null
// if there is none.
const TensorRecord* foreign_state(const Manifest& manifest, const SavedOptimizer& mine) {
  using Type = OptimizerConfig::Type;
  std::vector<std::string> own = mine.outside.empty() ? moment_names(mine.type) : std::vector<std::string>();
  if (mine.outside.empty() && mine.type == Type::kMuon) own.push_back(moment_names(mine.type, true).front());
  for (const TensorRecord& tensor : manifest.tensors) {
    if (std::find(own.begin(), own.end(), tensor.kind) != own.end()) continue;
    for (const Type type : {Type::kAdam, Type::kSgd, Type::kLion, Type::kAdagrad}) {
      const std::vector<std::string> kinds = moment_names(type);
      if (std::find(kinds.begin(), kinds.end(), tensor.kind) != kinds.end()) return &tensor;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> moment_names(OptimizerConfig::Type type, bool is_matrix) {
  using Type = OptimizerConfig::Type;
  switch (type) {
    case Type::kAdam:
    case Type::kAdamW:
      return {"exp_avg", "exp_avg_sq"};
    case Type::kLion:
      return {"exp_avg"};
    case Type::kSgd:
      return {"momentum_buffer"};
    case Type::kAdagrad:
      return {"sum"};
    case Type::kMuon:
      return is_matrix ? std::vector<std::string>{"momentum_buffer"} : moment_names(Type::kAdamW);
  }
  return {};
}

Json to_json(const SavedOptimizer& optimizer) {
  const bool outside = !optimizer.outside.empty();
  return {{"name", outside ? optimizer.outside : name_of(optimizer.type)}, {"outside", outside}};
}

void check_optimizer(const Manifest& manifest, const SavedOptimizer& mine) {
  const bool outside = !mine.outside.empty();
  const std::string name = outside ? mine.outside : name_of(mine.type);
  const Json saved = saved_in(manifest);
  if (saved.is_null()) {
    const TensorRecord* const foreign = foreign_state(manifest, mine);
    ZS_CHECK(foreign == nullptr, "the checkpoint has the state '", foreign->kind, "' of '", foreign->name,
             "', which this engine's optimizer ", describe(name, outside), " does not keep: it was saved with another",
             kAdvice);
    return;
  }
  const auto saved_name = saved.at("name").get<std::string>();
  const bool saved_outside = saved.value("outside", Json()) == Json(true);
  ZS_CHECK(saved_outside == outside && same_name(saved_name, name, outside),
           "the checkpoint was saved with the optimizer ", describe(saved_name, saved_outside), ", this engine has ",
           describe(name, outside), kAdvice);
}

}  // namespace zeroshard
