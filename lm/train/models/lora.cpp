#include "train/models/lora.h"

#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "checkpoint/model_files.h"

namespace zeroshard {
namespace {

constexpr const char* kHead = "lm_head";
constexpr const char* kAllLinear = "all-linear";

std::string last_component(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

// Returns whether PEFT would select the module at `path` for the entry `target` of target_modules.
bool matches(std::string_view path, std::string_view target) {
  return path == target || (path.ends_with(target) && path.substr(0, path.size() - target.size()).ends_with('.'));
}

using Linears = std::map<std::string, std::shared_ptr<Linear>>;

Linears linears_of(const CausalLM& model) {
  Linears linears;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto linear = std::dynamic_pointer_cast<Linear>(item.value())) linears.emplace(item.key(), std::move(linear));
  return linears;
}

std::set<std::string> last_components(const Linears& linears) {
  std::set<std::string> names;
  for (const auto& [path, linear] : linears) names.insert(last_component(path));
  return names;
}

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::vector<std::string> spelled_out(const std::vector<std::string>& targets, const Linears& linears) {
  std::set<std::string> names = last_components(linears);
  if (targets.empty()) {
    return names.contains("q_proj") ? std::vector<std::string>{"q_proj", "v_proj"} : std::vector<std::string>{"c_attn"};
  }
  if (targets != std::vector<std::string>{kAllLinear}) return targets;
  names.erase(kHead);
  return {names.begin(), names.end()};
}

// Returns the modules of `linears` that `targets` select. Throws ValueError if a target selects none.
Linears chosen(const std::vector<std::string>& targets, const Linears& linears) {
  Linears found;
  for (const std::string& target : targets) {
    bool any = false;
    for (const auto& [path, linear] : linears) {
      if (!matches(path, target)) continue;
      found.emplace(path, linear);
      any = true;
    }
    ZS_CHECK(any, "target_modules has '", target,
             "', but no linear module's path is this or ends so; the last components of their paths are: ",
             joined(last_components(linears)));
  }
  return found;
}

// Throws ValueError if the head's weight is also the embedding's, because an adapter of the head must not change the
// embedding.
void check_head_is_its_own(const CausalLM& model, const Linear& head) {
  for (const auto& item : model.named_parameters()) {
    ZS_CHECK(!item.value().is_same(head.weight()) || item.key() == concat(kHead, ".weight"), "target_modules has ",
             kHead, ", but its weight is that of '", item.key(), "' as well, which an adapter must not change: leave ",
             kHead, " out");
  }
}

}  // namespace

double LoraOptions::scale() const {
  const auto rank = static_cast<double>(r);
  return alpha / (use_rslora ? std::sqrt(rank) : rank);
}

LoraOptions add_lora(CausalLM& model, LoraOptions options) {
  constexpr int64_t kMaxRank = 65536;
  ZS_CHECK(options.r >= 1 && options.r <= kMaxRank, "r is ", options.r, "; it must be between 1 and ", kMaxRank);
  ZS_CHECK(std::isfinite(options.alpha) && options.alpha > 0, "alpha is ", options.alpha, "; it must be positive");
  ZS_CHECK(options.dropout >= 0 && options.dropout < 1, "dropout is ", options.dropout,
           "; it must be at least 0 and less than 1");
  ZS_CHECK(adapted_modules(model).empty(), "the model has adapters already");
  const Linears linears = linears_of(model);
  options.target_modules = spelled_out(options.target_modules, linears);
  const Linears targets = chosen(options.target_modules, linears);
  if (const auto head = targets.find(kHead); head != targets.end()) check_head_is_its_own(model, *head->second);
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  for (const auto& [path, linear] : targets) {
    linear->adapt(options.r, options.scale(), options.dropout);
    model.add_parameter(concat(path, kLoraA), 1 / std::sqrt(static_cast<double>(linear->in_features())));
    model.add_parameter(concat(path, kLoraB), 0);
  }
  return options;
}

std::map<std::string, const Linear*> adapted_modules(const CausalLM& model) {
  std::map<std::string, const Linear*> adapted;
  for (const auto& [path, linear] : linears_of(model))
    if (linear->adapted()) adapted.emplace(path, linear.get());
  return adapted;
}

ParameterValues with_adapters(const CausalLM& model, ParameterValues base, ParameterValues adapters) {
  ParameterValues both;
  both.identity = concat(base.identity, "; adapters: ", adapters.identity);
  both.read = [&model, base = std::move(base.read), added = std::move(adapters.read)](
                  const std::string& name, int64_t begin, int64_t end, float* out) {
    (model.is_added(name) ? added : base)(name, begin, end, out);
  };
  return both;
}

ParameterValues stored_adapters(const CausalLM& model, const std::string& directory) {
  const auto files = std::make_shared<const ModelFiles>(directory, "adapter_model");
  std::map<std::string, const ModelFiles::Tensor*> places;
  std::set<std::string> used;
  for (const auto& item : model.named_parameters()) {
    if (!model.is_added(item.key())) continue;
    const std::string name = concat(kPeftPrefix, item.key());
    const ModelFiles::Tensor* tensor = files->find(name);
    ZS_CHECK(tensor, "tensor '", name,
             "', which r and target_modules in adapter_config.json ask for, is in no file of '", directory, "'");
    ZS_CHECK(at::IntArrayRef(tensor->entry.shape) == item.value().sizes(), "tensor ", files->name_of(*tensor),
             " has shape ", at::IntArrayRef(tensor->entry.shape),
             ", but with the model and r in adapter_config.json it is ", item.value().sizes());
    used.insert(name);
    places.emplace(item.key(), tensor);
  }
  for (const auto& [name, tensor] : files->tensors())
    ZS_CHECK(used.contains(name), "tensor ", files->name_of(tensor),
             " belongs to no adapter that target_modules in adapter_config.json asks for");
  ParameterValues values;
  values.identity = files->identity();
  values.read = [files, places](const std::string& name, int64_t begin, int64_t end, float* out) {
    files->read(*places.at(name), begin, end, "F32", out);
  };
  return values;
}

std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory, const std::string& adapter) {
  std::shared_ptr<CausalLM> model = make_causal_lm_of(directory);
  add_lora(*model, read_lora_options(adapter));
  allocate(*model, with_adapters(*model, stored_values(*model, directory), stored_adapters(*model, adapter)));
  return model;
}

}  // namespace zeroshard
