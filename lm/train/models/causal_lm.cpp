#include "zeroshard/causal_lm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/check.h"
#include "device/missing_memory.h"
#include "file/hash.h"
#include "tokenizer/json_field.h"
#include "train/models/models.h"
#include "zeroshard/sequence.h"

namespace zeroshard {
namespace {

using Make = std::shared_ptr<CausalLM> (*)(Fields&);

const std::vector<std::pair<std::string, Make>>& architectures() {
  static const std::vector<std::pair<std::string, Make>> all = {
      {"gemma2", make_gemma2},   {"gpt2", make_gpt2},   {"llama", make_llama}, {"mistral", make_mistral},
      {"mixtral", make_mixtral}, {"qwen2", make_qwen2}, {"qwen3", make_qwen3},
  };
  return all;
}

// Ignores fields that transformers writes to every config.json and that do not change the model.
void ignore_common_fields(Fields& fields) {
  fields.ignore({"model_type",
                 "architectures",
                 "transformers_version",
                 "torch_dtype",
                 "dtype",
                 "use_cache",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "sep_token_id",
                 "cls_token_id",
                 "unk_token_id",
                 "return_dict",
                 "problem_type",
                 "id2label",
                 "label2id",
                 "task_specific_params",
                 "chunk_size_feed_forward",
                 "finetuning_task",
                 "tokenizer_class",
                 "generation_config",
                 "name_or_path",
                 "attn_implementation",
                 "cache_implementation"});
}

void check_shape(const char* name, const at::Tensor& tensor, const TokenBatch& batch) {
  const std::array<int64_t, 2> shape{batch.ids.size(0), batch.row_length()};
  ZS_CHECK(tensor.scalar_type() == at::kLong && tensor.sizes() == at::IntArrayRef(shape), "TokenBatch.", name, " is ",
           tensor.scalar_type(), " ", tensor.sizes(), "; it must be int64 ", at::IntArrayRef(shape), " as the ids are");
}

std::pair<int64_t, int64_t> range_of(const at::Tensor& ids) {
  const auto [least, greatest] = ids.aminmax();
  return {least.item<int64_t>(), greatest.item<int64_t>()};
}

// Returns each token's position, int64, [batch, row length]. It is the distance from the first token of the token's
// document in the same row. Without documents, it is the distance from the first token of the row.
at::Tensor count_positions(const TokenBatch& batch) {
  const int64_t length = batch.row_length();
  const at::Tensor places = at::arange(length, batch.ids.options()).expand({batch.ids.size(0), length});
  if (!batch.documents.defined() || length == 0) return places.contiguous();
  at::Tensor starts = at::zeros_like(places);
  const at::Tensor changed = batch.documents.narrow(1, 1, length - 1).ne(batch.documents.narrow(1, 0, length - 1));
  const at::Tensor later = places.narrow(1, 1, length - 1);
  starts.narrow(1, 1, length - 1).copy_(at::where(changed, later, at::zeros_like(later)));
  return places - std::get<0>(at::cummax(starts, 1));
}

constexpr int64_t kInitialBlock = int64_t{1} << 16;

// Throws ValueError for a model of more than 2^53 parameters, because code that computes numbers of bytes could
// overflow.
void check_count(const CausalLM& model, const std::string& source) {
  constexpr double kMost = int64_t{1} << 53;
  double count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += static_cast<double>(parameter.numel());
  ZS_CHECK(count <= kMost, source, " says that the model has ", count, " parameters: at most 2^53 are possible");
}

}  // namespace

at::Tensor PartRunner::run(const torch::nn::Module&, const at::Tensor& input, const Forward& forward) const {
  return forward(input);
}

at::Tensor PartRunner::run_block(int64_t, const torch::nn::Module& part, const at::Tensor& input,
                                 const Forward& forward) const {
  return run(part, input, forward);
}

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& key, const at::Tensor& value) {
  const int64_t added = key.size(2);
  ZS_CHECK(length_ + added <= capacity_, length_ + added, " tokens do not fit into a cache of ", capacity_);
  const auto [at, is_new] = layers_.try_emplace(layer);
  auto& [keys, values] = at->second;
  if (is_new) {
    keys = at::empty({key.size(0), key.size(1), capacity_, key.size(3)}, key.options());
    values = at::empty({value.size(0), value.size(1), capacity_, value.size(3)}, value.options());
  }
  keys.narrow(2, length_, added).copy_(key);
  values.narrow(2, length_, added).copy_(value);
  return {keys.narrow(2, 0, length_ + added), values.narrow(2, 0, length_ + added)};
}

int64_t TokenBatch::row_length() const {
  return ids.size(1) * (sequence ? sequence->size() : 1);
}

at::Tensor TokenBatch::piece_of(const at::Tensor& rows) const {
  return sequence ? rows.narrow(1, sequence->rank() * ids.size(1), ids.size(1)).contiguous() : rows;
}

at::Tensor CausalLM::logits(const TokenBatch& batch, const PartRunner& runner, KvCache* cache) {
  TokenBatch whole = batch;
  ZS_CHECK(batch.ids.dim() == 2 && batch.ids.scalar_type() == at::kLong, "TokenBatch.ids is ", batch.ids.scalar_type(),
           " ", batch.ids.sizes(), "; it must be int64 [batch, length]");
  if (batch.documents.defined()) check_shape("documents", batch.documents, batch);
  ZS_CHECK(!cache || !batch.sequence, "a cache is for whole rows, and TokenBatch.sequence is given");
  ZS_CHECK(!cache || (!batch.documents.defined() && !batch.positions.defined()),
           "with a cache a batch has ids alone: it goes on where the cache ends");
  const int64_t past = cache ? cache->length() : 0;
  if (!batch.positions.defined()) whole.positions = count_positions(batch);
  if (past > 0) whole.positions = whole.positions + past;
  check_shape("positions", whole.positions, batch);
  if (batch.ids.numel() > 0) {
    const auto [least, greatest] = batch.id_range ? *batch.id_range : range_of(batch.ids);
    ZS_CHECK(least >= 0 && greatest < sizes_.vocab_size, "token id ", least < 0 ? least : greatest,
             " is outside the model's vocabulary of ", sizes_.vocab_size,
             ": the text was made with another tokenizer than the model's");
    // Does not read the positions if the model computed them and the whole row ends within max_length. They cannot be
    // too large then, and reading them would make the host wait for the device.
    const bool within = !batch.positions.defined() && past + batch.row_length() <= sizes_.max_length;
    const int64_t last = within ? 0 : whole.positions.max().item<int64_t>();
    ZS_CHECK(last < sizes_.max_length, "position ", last, " is outside the model's ", sizes_.max_length,
             " (max_position_embeddings): use shorter rows");
  }
  whole.positions = batch.piece_of(whole.positions);
  const at::Tensor logits = forward_logits(whole, runner, cache);
  if (cache) cache->advance(batch.ids.size(1));
  return logits;
}

// Draws each block of values with a generator of its own, so that values can be drawn without the values before them.
void CausalLM::initial_values(uint64_t seed, const std::string& name, int64_t begin, int64_t end, float* out) {
  const at::NoGradGuard no_grad;
  at::Tensor block = at::empty({kInitialBlock}, at::kFloat);
  for (int64_t at = begin; at < end;) {
    const int64_t number = at / kInitialBlock, first = number * kInitialBlock;
    const int64_t stop = std::min(end, first + kInitialBlock);
    const std::string key = concat(seed, ' ', number, ' ', name);
    at::Generator generator = at::detail::createCPUGenerator(hash_bytes(key.data(), static_cast<int64_t>(key.size())));
    const auto added = added_.find(name);
    if (added == added_.end())
      initialize_parameter(name, block, generator);
    else
      block.uniform_(-added->second, added->second, generator);
    const float* values = block.const_data_ptr<float>();
    out = std::copy(values + (at - first), values + (stop - first), out);
    at = stop;
  }
}

void CausalLM::initialize(uint64_t seed) {
  std::set<const void*> drawn;  // a tied parameter is drawn once, under its first name
  for (auto& item : named_parameters()) {
    if (drawn.insert(item.value().unsafeGetTensorImpl()).second)
      initial_values(seed, item.key(), 0, item.value().numel(), item.value().data_ptr<float>());
  }
}

ParameterValues initial_values(CausalLM& model, uint64_t seed) {
  return {[&model, seed](const std::string& name, int64_t begin, int64_t end, float* out) {
            model.initial_values(seed, name, begin, end, out);
          },
          concat("seed ", seed)};
}

std::string missing_for(const std::string& name, const at::Tensor& parameter) {
  return concat(" for parameter '", name, "' ", parameter.sizes(), " of ", parameter.nbytes(), " bytes");
}

void allocate(CausalLM& model) {
  for (auto& item : model.named_parameters()) {
    if (item.value().unsafeGetTensorImpl()->storage_initialized()) continue;
    at::Tensor& parameter = item.value();
    tell_missing_memory([&] { parameter.set_data(at::empty(parameter.sizes(), parameter.options())); },
                        [&] { return missing_for(item.key(), parameter); });
  }
}

void allocate(CausalLM& model, const ParameterValues& values) {
  allocate(model);
  for (auto& item : model.named_parameters())
    values.read(item.key(), 0, item.value().numel(), item.value().data_ptr<float>());
}

std::vector<std::string> causal_lm_types() {
  std::vector<std::string> types;
  for (const auto& [type, make] : architectures()) types.push_back(type);
  return types;
}

std::shared_ptr<CausalLM> make_causal_lm(const std::string& config_json, const std::string& source) {
  Fields fields(parse_json(config_json, source), source);
  const std::string type = fields.text("model_type");
  for (const auto& [known, make] : architectures()) {
    if (known != type) continue;
    ignore_common_fields(fields);
    std::shared_ptr<CausalLM> model = make(fields);
    fields.finish();
    check_count(*model, source);
    return model;
  }
  std::string all;
  for (const auto& [known, make] : architectures()) all += (all.empty() ? "" : ", ") + known;
  fields.fail("model_type", "is not supported; these are: " + all);
}

}  // namespace zeroshard
