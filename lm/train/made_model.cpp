#include "train/made_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "train/lora_export.h"
#include "train/model_directory.h"
#include "train/models/lora_config.h"
#include "zeroshard/activations.h"

namespace zeroshard {
namespace {

void freeze(CausalLM& model, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    bool found = false;
    for (auto& item : model.named_parameters()) {
      if (!item.key().starts_with(prefix)) continue;
      item.value().set_requires_grad(false);
      found = true;
    }
    ZS_CHECK(found, "train.freeze names '", prefix, "', but no parameter's name begins so");
  }
  const auto parameters = model.parameters();
  ZS_CHECK(std::any_of(parameters.begin(), parameters.end(), [](const auto& each) { return each.requires_grad(); }),
           "train.freeze freezes every parameter: nothing is left to train");
}

LoraOptions add_adapters(CausalLM& model, const LoraOptions& options) {
  try {
    return add_lora(model, options);
  } catch (const ValueError& error) {
    throw ValueError(concat("train.lora.", error.what()));
  }
}

void check_shared_rows(int ranks, const TrainOptions& options, const CausalLM::Sizes& sizes) {
  ZS_CHECK(options.rows.length % ranks == 0, "train.data.length is ", options.rows.length, ", and the ", ranks,
           " ranks of sequence_parallel_size have equal pieces of a row, so the length must be a multiple of ", ranks,
           ", such as ", (options.rows.length + ranks - 1) / ranks * ranks);
  check_shared_heads("sequence_parallel_size", ranks, sizes.num_heads, sizes.num_kv_heads);
  ZS_CHECK(ranks == 1 || sizes.attention_dropout == 0, "the model in '", options.model, "' has dropout of ",
           sizes.attention_dropout, " inside of attention. With sequence_parallel_size ", ranks,
           " a run would then depend on the number of ranks: set attention_dropout (attn_pdrop for GPT-2) in its "
           "config.json to 0");
}

}  // namespace

MadeModel make_model(const TrainConfig& config) {
  const TrainOptions& options = config.train;
  MadeModel made{make_causal_lm_of(options.model), options.lora};
  ZS_CHECK(options.rows.length <= made.model->max_length(), "train.data.length is ", options.rows.length,
           ", but the model in '", options.model, "' has only ", made.model->max_length(), " positions");
  check_shared_rows(config.engine.config.sequence_parallel_size, options, made.model->sizes());
  freeze(*made.model, options.freeze);
  if (made.lora) made.lora = add_adapters(*made.model, *made.lora);
  return made;
}

ParameterValues values_of(const TrainOptions& options, CausalLM& model) {
  if (options.from_scratch) return initial_values(model, options.seed);
  ParameterValues stored = stored_values(model, options.model);
  if (!options.lora) return stored;
  return with_adapters(model, std::move(stored),
                       options.lora_adapter.empty() ? initial_values(model, options.seed)
                                                    : stored_adapters(model, options.lora_adapter));
}

void write_result(const TrainOptions& options, const MadeModel& made) {
  const ModelExport what{options.model, options.checkpoints, options.output, options.export_dtype};
  if (!made.lora)
    write_model_directory(what);
  else if (options.lora_merge)
    write_model_directory(what, merged_weights(*made.model));
  else
    write_adapter_directory(what, adapters_alone(*made.model),
                            make_adapter_config(*made.model, *made.lora, options.model));
}

}  // namespace zeroshard
