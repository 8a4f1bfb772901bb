#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "base/check.h"
#include "checkpoint/model_files.h"
#include "zeroshard/causal_lm.h"

namespace zeroshard {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw IoError(concat("cannot read '", path, "': it must be there beside the weights of a model"));
  return text;
}

// Files of the model without its head lack the name of the trunk: "h.0.ln_1.weight" for "transformer.h.0.ln_1.weight".
const ModelFiles::Tensor* find_tensor(const ModelFiles& files, const std::string& parameter) {
  if (const auto* found = files.find(parameter)) return found;
  return files.find(std::string_view(parameter).substr(parameter.find('.') + 1));
}

// Tensors that old files have and no model needs: tables, and the head where it is the embedding.
bool is_leftover(std::string_view name, bool tied) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return ends(".rotary_emb.inv_freq") || ends(".attn.bias") || ends(".attn.masked_bias") ||
         (tied && name == "lm_head.weight");
}

void load_parameter(const ModelFiles& files, const ModelFiles::Tensor& tensor, const at::Tensor& parameter) {
  ZS_CHECK(at::IntArrayRef(tensor.entry.shape) == parameter.sizes(), "tensor ", files.name_of(tensor), " has shape ",
           at::IntArrayRef(tensor.entry.shape), ", but config.json says ", parameter.sizes());
  files.read(tensor, 0, parameter.numel(), "F32", parameter.data_ptr<float>());
}

}  // namespace

std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory) {
  const at::NoGradGuard no_grad;
  const std::string config = directory + "/config.json";
  std::shared_ptr<CausalLM> model = make_causal_lm(read_text(config), config);
  const ModelFiles files(directory);
  std::set<std::string_view> used;
  std::set<const void*> loaded;
  bool tied = false;
  for (const auto& item : model->named_parameters()) {
    if (!loaded.insert(item.value().unsafeGetTensorImpl()).second) {
      tied = true;
      continue;
    }
    const ModelFiles::Tensor* tensor = find_tensor(files, item.key());
    ZS_CHECK(tensor, "parameter '", item.key(), "' of the model in config.json is in no file of '", directory, "'");
    load_parameter(files, *tensor, item.value());
    used.insert(tensor->entry.name);
  }
  for (const auto& [name, tensor] : files.tensors())
    ZS_CHECK(used.contains(name) || is_leftover(name, tied), "tensor ", files.name_of(tensor),
             " is no parameter of the model in config.json");
  return model;
}

}  // namespace zeroshard
