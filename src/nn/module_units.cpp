#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/check.h"
#include "zeroshard/nn.h"

namespace zeroshard {

using torch::nn::Module;

namespace {

bool is_container(const Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

// Returns "Block" for class model::BlockImpl.
std::string class_name(const Module& module) {
  std::string name = module.name();
  if (const size_t scope = name.rfind("::"); scope != std::string::npos) name.erase(0, scope + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.erase(name.size() - 4);
  return name;
}

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// A key by which tied parameters are found. Two tensors have the same key if they have the same address, shape,
// strides, dtype and device. A tensor without elements or memory has a key of its own.
using MemoryKey = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, int, std::string>;

MemoryKey memory_key(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.unsafeGetTensorImpl()->storage_initialized())
    return {tensor.unsafeGetTensorImpl(), {}, {}, -1, {}};
  return {tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(), int(tensor.scalar_type()),
          tensor.device().str()};
}

}  // namespace

// Finds the units of a model and fills in a ModuleUnits. ModuleUnits (nn.h) says what forms a unit.
class UnitFinder {
 public:
  UnitFinder(ModuleUnits& units, std::vector<std::string> classes)
      : units_(units), classes_(classes.begin(), classes.end()), missing_(classes_) {}

  void run(const Module& model) {
    note_class(model);
    visit(model, nullptr, "", Place{&model, "root", classes_.contains(class_name(model))});
    if (!missing_.empty()) {
      std::string found;
      for (const std::string& name : seen_) found += (found.empty() ? "" : ", ") + name;
      throw ValueError(concat("zeroshard.unit_classes names '", *missing_.begin(),
                              "', but the model has no such module; it has ", found));
    }
    std::vector<std::pair<std::string, at::Tensor>> firsts;
    for (const Param& param : params_) firsts.emplace_back(param.names.front(), param.tensors.front());
    check_apart(firsts);
    make_definitions();
    set_parents(model, -1);
  }

 private:
  // A module at whose call the engine gathers the parameters of the place. These are the module's own parameters and,
  // if `whole`, also those of the modules in it.
  struct Place {
    const Module* module;
    std::string name;
    bool whole;  // true: the place also has the modules in `module`, except those of unit_classes
  };
  struct Param {
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
    std::vector<Place> places;
  };

  void note_class(const Module& module) {
    seen_.insert(class_name(module));
    missing_.erase(class_name(module));
  }

  bool is_block(const Module& parent, const Module& module) const {
    return classes_.empty() ? is_container(parent) && !is_container(module) : classes_.contains(class_name(module));
  }

  bool has_blocks(const Module& module) const {
    for (const auto& child : module.children()) {
      if (is_block(module, *child) || has_blocks(*child)) return true;
    }
    return false;
  }

  Place place_of(const Module& parent, const Module& child, const std::string& path, const Place& around) const {
    const bool nested = around.whole && classes_.empty();  // without unit_classes, a unit has no units inside
    if (!nested && is_block(parent, child)) return {&child, path, true};
    if (around.whole) return around;
    return {&child, path, !child.named_parameters(/*recurse=*/false).is_empty() && !has_blocks(child)};
  }

  void visit(const Module& module, std::shared_ptr<const Module> held, const std::string& path, const Place& place) {
    units_.modules_.try_emplace(&module, ModuleUnits::Known{std::move(held), path, place.module, {}});
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add(item.value(), join(path, item.key()), place);
    }
    for (const auto& item : module.named_children()) {
      const Module& child = *item.value();
      const std::string name = join(path, item.key());
      note_class(child);
      visit(child, item.value(), name, place_of(module, child, name, place));
    }
  }

  void add(const at::Tensor& tensor, const std::string& name, const Place& place) {
    ZS_CHECK(!tensor.is_meta(), "parameter '", name, "' is on the meta device: it has no value");
    const auto [at, is_new] = index_.try_emplace(memory_key(tensor), params_.size());
    if (is_new) params_.emplace_back();
    Param& param = params_[at->second];
    param.names.push_back(name);
    const auto same_tensor = [&](const at::Tensor& other) { return other.is_same(tensor); };
    if (std::none_of(param.tensors.begin(), param.tensors.end(), same_tensor)) param.tensors.push_back(tensor);
    const auto same_place = [&](const Place& other) { return other.module == place.module; };
    if (std::none_of(param.places.begin(), param.places.end(), same_place)) param.places.push_back(place);
  }

  void make_definitions() {
    std::map<const Module*, size_t> unit_of;
    std::vector<std::vector<std::vector<at::Tensor>>> tensors;
    for (const Param& param : params_) {
      const Place& owner = param.places.front();
      const auto [at, is_new] = unit_of.try_emplace(owner.module, tensors.size());
      const size_t unit = at->second;
      if (is_new) {
        tensors.emplace_back();
        units_.definitions_.push_back({owner.name, {}, -1, {}});
        owners_.emplace(owner.module, int(unit));
      }
      const at::Tensor& first = param.tensors.front();
      units_.definitions_[unit].params.push_back(
          {param.names, first.sizes().vec(), first.scalar_type(), first.requires_grad(), /*param_group=*/0});
      tensors[unit].push_back(param.tensors);
      for (const Place& place : param.places) {
        std::vector<size_t>& needed = units_.modules_.at(place.module).units;
        if (std::find(needed.begin(), needed.end(), unit) == needed.end()) needed.push_back(unit);
      }
    }
    for (size_t u = 0; u < tensors.size(); ++u) units_.definitions_[u].tensors = [list = tensors[u]] { return list; };
  }

  void set_parents(const Module& module, int enclosing) {
    const auto own = owners_.find(&module);
    if (own != owners_.end() && own->second != enclosing) {
      units_.definitions_[size_t(own->second)].parent = enclosing;
      enclosing = own->second;
    }
    for (const auto& child : module.children()) set_parents(*child, enclosing);
  }

  ModuleUnits& units_;
  std::set<std::string> classes_, missing_, seen_;
  std::map<MemoryKey, size_t> index_;
  std::vector<Param> params_;            // in the order of the model's modules
  std::map<const Module*, int> owners_;  // the index of each unit by its module
};

ModuleUnits::ModuleUnits(const Module& model, std::vector<std::string> unit_classes) {
  UnitFinder(*this, std::move(unit_classes)).run(model);
}

const std::vector<size_t>& ModuleUnits::of(const Module& module) const {
  const auto at = modules_.find(&module);
  ZS_CHECK(at != modules_.end(), "a ", class_name(module),
           " was called that was not in the model when the engine was built");
  const Known& known = at->second;
  ZS_CHECK(known.unit_module == &module, "module '", known.path, "' is inside the unit '",
           modules_.at(known.unit_module).path, "'. Call '", modules_.at(known.unit_module).path,
           "' through the engine, and let its forward call '", known.path, "' directly");
  return known.units;
}

}  // namespace zeroshard
