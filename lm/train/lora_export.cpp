#include "train/lora_export.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <limits>
#include <map>
#include <memory>
#include <set>

#include "base/format.h"
#include "train/models/lora.h"

namespace zeroshard {
namespace {

using Read = ExportOptions::Read;

// Merges adapters into weights. Each call adds the adapter's change to one piece of a weight. A and B of that weight
// stay in memory, because the next call is normally for the next piece of the same weight.
class Merge {
 public:
  explicit Merge(const CausalLM& model) {
    const auto parameters = model.named_parameters();
    for (const auto& [path, linear] : adapted_modules(model)) {
      const int64_t rank = parameters[concat(path, kLoraA)].size(0);
      modules_[path + ".weight"] = {
          path, rank, linear->in_features(), linear->out_features(), linear->adapter_scale(), linear->transposed()};
    }
  }

  void operator()(const std::string& name, int64_t begin, int64_t end, float* values, const Read& read) {
    const auto found = modules_.find(name);
    if (found == modules_.end() || begin == end) return;
    const at::NoGradGuard no_grad;
    if (name != loaded_) load(found->second, read);
    loaded_ = name;
    const int64_t columns = right_.size(1), first = begin / columns, last = (end + columns - 1) / columns;
    const at::Tensor change = at::mm(left_.narrow(0, first, last - first), right_) * found->second.scale;
    const float* from = change.const_data_ptr<float>() + (begin - first * columns);
    for (int64_t i = 0; i < end - begin; ++i) values[i] += from[i];
  }

 private:
  struct Module {
    std::string path;
    int64_t rank = 0, in = 0, out = 0;
    double scale = 0;
    bool transposed = false;
  };

  // Loads left_ and right_. Their product, multiplied by the scale, is the change of the stored weight.
  void load(const Module& module, const Read& read) {
    const at::Tensor a = at::empty({module.rank, module.in}), b = at::empty({module.out, module.rank});
    read(concat(module.path, kLoraA), 0, a.numel(), a.data_ptr<float>());
    read(concat(module.path, kLoraB), 0, b.numel(), b.data_ptr<float>());
    left_ = module.transposed ? a.t() : b;
    right_ = module.transposed ? b.t() : a;
  }

  std::map<std::string, Module> modules_;  // by the name of the weight
  std::string loaded_;
  at::Tensor left_, right_;  // [rows, rank], [rank, columns]
};

std::set<std::string> added_parameters(const CausalLM& model) {
  std::set<std::string> names;
  for (const auto& item : model.named_parameters())
    if (model.is_added(item.key())) names.insert(item.key());
  return names;
}

}  // namespace

ExportOptions adapters_alone(const CausalLM& model) {
  ExportOptions options;
  options.file_stem = "adapter_model";
  options.max_file_bytes = std::numeric_limits<int64_t>::max();  // PEFT reads one file
  options.rename = [added = added_parameters(model)](const std::string& name) {
    return added.contains(name) ? concat(kPeftPrefix, name) : std::string();
  };
  return options;
}

ExportOptions merged_weights(const CausalLM& model) {
  ExportOptions options;
  options.rename = [added = added_parameters(model)](const std::string& name) {
    return added.contains(name) ? std::string() : name;
  };
  options.change = [merge = std::make_shared<Merge>(model)](const std::string& name, int64_t begin, int64_t end,
                                                            float* values, const Read& read) {
    (*merge)(name, begin, end, values, read);
  };
  return options;
}

}  // namespace zeroshard
