#include <map>
#include <set>

#include "base/check.h"
#include "base/read_text.h"
#include "checkpoint/model_files.h"
#include "zeroshard/causal_lm.h"

namespace zeroshard {
namespace {

// Returns the tensor of a parameter, or null. In the files of a model that was saved without its head, names lack their
// first part: "h.0.ln_1.weight" instead of "transformer.h.0.ln_1.weight".
const ModelFiles::Tensor* find_tensor(const ModelFiles& files, const std::string& parameter) {
  if (const auto* found = files.find(parameter)) return found;
  return files.find(std::string_view(parameter).substr(parameter.find('.') + 1));
}

// Returns whether a tensor that belongs to no parameter can be ignored. Such tensors are tables that the model computes
// itself and that old files have, and the head's weight if a parameter is tied.
bool is_leftover(std::string_view name, bool tied) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return ends(".rotary_emb.inv_freq") || ends(".attn.bias") || ends(".attn.masked_bias") ||
         (tied && name == "lm_head.weight");
}

// The tensor of each parameter, by the parameter's name. A tied parameter has an entry for each of its names.
using Places = std::map<std::string, const ModelFiles::Tensor*, std::less<>>;

Places find_all(const ModelFiles& files, const CausalLM& model) {
  Places places;
  std::map<const void*, const ModelFiles::Tensor*> known;
  std::set<std::string_view> used;
  bool tied = false;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (model.is_added(item.key())) continue;
    const auto [at, is_new] = known.try_emplace(parameter.unsafeGetTensorImpl(), nullptr);
    if (is_new) {
      const ModelFiles::Tensor* tensor = at->second = find_tensor(files, item.key());
      ZS_CHECK(tensor, "parameter '", item.key(), "' of the model in config.json is in no file of '", files.directory(),
               "'");
      ZS_CHECK(at::IntArrayRef(tensor->entry.shape) == parameter.sizes(), "tensor ", files.name_of(*tensor),
               " has shape ", at::IntArrayRef(tensor->entry.shape), ", but config.json says ", parameter.sizes());
      used.insert(tensor->entry.name);
    }
    tied = tied || !is_new;
    places.emplace(item.key(), at->second);
  }
  for (const auto& [name, tensor] : files.tensors())
    ZS_CHECK(used.contains(name) || is_leftover(name, tied), "tensor ", files.name_of(tensor),
             " is no parameter of the model in config.json");
  return places;
}

}  // namespace

std::shared_ptr<CausalLM> make_causal_lm_of(const std::string& directory) {
  const std::string config = directory + "/config.json";
  return make_causal_lm(read_text(config, ": it must be there beside the weights of a model"), config);
}

ParameterValues stored_values(const CausalLM& model, const std::string& directory) {
  const auto files = std::make_shared<const ModelFiles>(directory);
  ParameterValues values;
  values.identity = files->identity();
  values.read = [files, places = find_all(*files, model)](const std::string& name, int64_t begin, int64_t end,
                                                          float* out) {
    files->read(*places.at(name), begin, end, "F32", out);
  };
  return values;
}

std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory) {
  std::shared_ptr<CausalLM> model = make_causal_lm_of(directory);
  allocate(*model, stored_values(*model, directory));
  return model;
}

}  // namespace zeroshard
