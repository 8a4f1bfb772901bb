#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/read_text.h"
#include "base/shown_text.h"
#include "zeroshard/plan.h"

// Lists the names, shapes and order of the parameters that transformers 5 builds for causal language models.
namespace zeroshard {
namespace {

using Json = nlohmann::json;

// A family of models: the values that transformers takes for absent fields, and how the family differs from Llama.
struct Family {
  struct Sizes {
    int64_t vocab, hidden, intermediate, layers, heads;
    int64_t kv_heads;  // 0: as many as heads
    int64_t head_dim;  // 0: hidden / heads
  };
  std::string_view model_type;
  Sizes sizes;
  bool tied = false;
  bool qkv_bias = false;        // q, k and v always have a bias
  bool attention_bias = false;  // the field "attention_bias" adds a bias to q, k, v and o
  bool mlp_bias = false;        // the field "mlp_bias" adds a bias to the MLP
  bool qk_norm = false;
  bool feedforward_norms = false;
  bool experts = false;
};

constexpr std::array kFamilies{
    Family{.model_type = "llama",
           .sizes = {.vocab = 32000,
                     .hidden = 4096,
                     .intermediate = 11008,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 0,
                     .head_dim = 0},
           .attention_bias = true,
           .mlp_bias = true},
    Family{.model_type = "mistral",
           .sizes = {.vocab = 32000,
                     .hidden = 4096,
                     .intermediate = 14336,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 8,
                     .head_dim = 0}},
    Family{.model_type = "qwen2",
           .sizes = {.vocab = 151936,
                     .hidden = 4096,
                     .intermediate = 22016,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 32,
                     .head_dim = 0},
           .qkv_bias = true},
    Family{.model_type = "qwen3",
           .sizes = {.vocab = 151936,
                     .hidden = 4096,
                     .intermediate = 22016,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 32,
                     .head_dim = 128},
           .attention_bias = true,
           .qk_norm = true},
    Family{.model_type = "gemma2",
           .sizes = {.vocab = 256000,
                     .hidden = 2304,
                     .intermediate = 9216,
                     .layers = 26,
                     .heads = 8,
                     .kv_heads = 4,
                     .head_dim = 256},
           .tied = true,
           .attention_bias = true,
           .feedforward_norms = true},
    Family{.model_type = "mixtral",
           .sizes = {.vocab = 32000,
                     .hidden = 4096,
                     .intermediate = 14336,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 8,
                     .head_dim = 0},
           .experts = true},
};
constexpr std::string_view kSupported = "llama, mistral, qwen2, qwen3, gemma2, mixtral, gpt2";

constexpr int64_t kMaxSize = 1'000'000'000, kMaxLayers = 100'000;

// Reads the fields of a config.json, and remembers which of them are absent.
class Fields {
 public:
  Fields(const Json& json, const std::string& source) : json_(json), source_(source) {}

  // Returns a whole number from 1 to `max`. If the field is absent, returns `fallback`, and notes that in notes(). A
  // fallback of 0 is not noted, because the caller then derives the value from other fields.
  int64_t size(const char* key, int64_t fallback, int64_t max = kMaxSize) {
    const auto field = json_.find(key);
    if (field == json_.end()) {
      if (fallback != 0) defaulted_.push_back(concat(key, " = ", fallback));
      return fallback;
    }
    const bool valid = field->is_number_integer() && *field >= 1 && *field <= max;
    ZS_CHECK(valid, source_, ": \"", key, "\" must be a whole number from 1 to ", max, ", got ",
             shown_text(field->dump()));
    return field->get<int64_t>();
  }

  // Does the same as size(), but returns 0 if the field is null.
  int64_t optional_size(const char* key, int64_t fallback) {
    const auto field = json_.find(key);
    return field != json_.end() && field->is_null() ? 0 : size(key, fallback);
  }

  bool flag(const char* key, bool fallback) const {
    const auto field = json_.find(key);
    if (field == json_.end()) return fallback;
    ZS_CHECK(field->is_boolean(), source_, ": \"", key, "\" must be true or false, got ", shown_text(field->dump()));
    return field->get<bool>();
  }

  bool has(const char* key) const { return json_.contains(key); }
  const std::string& source() const { return source_; }

  std::vector<std::string> notes() const {
    if (defaulted_.empty()) return {};
    std::string note = "absent in the config, so the default of transformers: ";
    for (size_t i = 0; i < defaulted_.size(); ++i) note += (i == 0 ? "" : ", ") + defaulted_[i];
    return {note};
  }

 private:
  const Json& json_;
  const std::string& source_;
  std::vector<std::string> defaulted_;
};

// Builds a unit of the parameters of one module. Parameter names begin with the module's name.
class UnitBuilder {
 public:
  explicit UnitBuilder(std::string module) : unit_{std::move(module), {}} {}

  void add(const std::string& name, std::vector<int64_t> shape) {
    unit_.params.push_back({{concat(unit_.name, ".", name)}, std::move(shape)});
  }
  void weight(const std::string& module, std::vector<int64_t> shape) { add(module + ".weight", std::move(shape)); }
  void linear(const std::string& module, int64_t in, int64_t out, bool bias) {
    weight(module, {out, in});
    if (bias) add(module + ".bias", {out});
  }
  // Adds a Conv1D of GPT-2, whose weight is transposed.
  void conv1d(const std::string& module, int64_t in, int64_t out) {
    weight(module, {in, out});
    add(module + ".bias", {out});
  }
  void layer_norm(const std::string& module, int64_t size) {
    weight(module, {size});
    add(module + ".bias", {size});
  }
  UnitShapes build() { return std::move(unit_); }

 private:
  UnitShapes unit_;
};

struct LlamaDims {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, experts;
  bool qkv_bias, o_bias, mlp_bias;
};

UnitShapes llama_layer(const Family& family, const LlamaDims& dims, int64_t index) {
  UnitBuilder unit(concat("model.layers.", index));
  const int64_t q = dims.heads * dims.head_dim, kv = dims.kv_heads * dims.head_dim;
  unit.linear("self_attn.q_proj", dims.hidden, q, dims.qkv_bias);
  unit.linear("self_attn.k_proj", dims.hidden, kv, dims.qkv_bias);
  unit.linear("self_attn.v_proj", dims.hidden, kv, dims.qkv_bias);
  unit.linear("self_attn.o_proj", q, dims.hidden, dims.o_bias);
  if (family.qk_norm) {
    unit.weight("self_attn.q_norm", {dims.head_dim});
    unit.weight("self_attn.k_norm", {dims.head_dim});
  }
  if (family.experts) {
    unit.weight("mlp.gate", {dims.experts, dims.hidden});
    unit.add("mlp.experts.gate_up_proj", {dims.experts, 2 * dims.intermediate, dims.hidden});
    unit.add("mlp.experts.down_proj", {dims.experts, dims.hidden, dims.intermediate});
  } else {
    unit.linear("mlp.gate_proj", dims.hidden, dims.intermediate, dims.mlp_bias);
    unit.linear("mlp.up_proj", dims.hidden, dims.intermediate, dims.mlp_bias);
    unit.linear("mlp.down_proj", dims.intermediate, dims.hidden, dims.mlp_bias);
  }
  unit.weight("input_layernorm", {dims.hidden});
  unit.weight("post_attention_layernorm", {dims.hidden});
  if (family.feedforward_norms) {
    unit.weight("pre_feedforward_layernorm", {dims.hidden});
    unit.weight("post_feedforward_layernorm", {dims.hidden});
  }
  return unit.build();
}

// Returns a unit for a module outside of the layers. Each such module is a unit of its own.
UnitShapes module_unit(const std::string& module, std::vector<int64_t> shape, bool has_bias = false) {
  UnitBuilder unit(module);
  unit.add("weight", shape);
  if (has_bias) unit.add("bias", std::move(shape));
  return unit.build();
}

UnitShapes embedding(const std::string& module, int64_t vocab, int64_t hidden, bool is_head_too) {
  UnitShapes unit = module_unit(module, {vocab, hidden});
  if (is_head_too) unit.params.front().names.push_back("lm_head.weight");
  return unit;
}

void check_divides(const Fields& fields, const char* name, int64_t value, const char* whole_name, int64_t whole) {
  ZS_CHECK(whole % value == 0, fields.source(), ": \"", name, "\" is ", value, " and must divide \"", whole_name,
           "\", which is ", whole);
}

ModelShapes llama_like(const Family& family, Fields& fields) {
  LlamaDims dims{};
  const int64_t vocab = fields.size("vocab_size", family.sizes.vocab);
  dims.hidden = fields.size("hidden_size", family.sizes.hidden);
  dims.intermediate = fields.size("intermediate_size", family.sizes.intermediate);
  const int64_t layers = fields.size("num_hidden_layers", family.sizes.layers, kMaxLayers);
  dims.heads = fields.size("num_attention_heads", family.sizes.heads);
  dims.kv_heads = fields.optional_size("num_key_value_heads", family.sizes.kv_heads);
  if (dims.kv_heads == 0) dims.kv_heads = dims.heads;
  check_divides(fields, "num_key_value_heads", dims.kv_heads, "num_attention_heads", dims.heads);
  dims.head_dim = fields.optional_size("head_dim", family.sizes.head_dim);
  if (dims.head_dim == 0) {
    check_divides(fields, "num_attention_heads", dims.heads, "hidden_size", dims.hidden);
    dims.head_dim = dims.hidden / dims.heads;
  }
  if (family.experts) {
    // This field has two names, and transformers accepts both.
    dims.experts = fields.size(fields.has("num_experts") ? "num_experts" : "num_local_experts", 8);
  }
  const bool attention_bias = family.attention_bias && fields.flag("attention_bias", false);
  dims.qkv_bias = family.qkv_bias || attention_bias;
  dims.o_bias = attention_bias;
  dims.mlp_bias = family.mlp_bias && fields.flag("mlp_bias", false);
  const bool tied = fields.flag("tie_word_embeddings", family.tied);

  ModelShapes model{std::string(family.model_type), dims.hidden, {}, {}, {}};
  model.sizes = {layers, dims.intermediate, dims.heads, dims.kv_heads, dims.head_dim, vocab, dims.experts, 0};
  if (family.experts) model.sizes.experts_per_token = fields.size("num_experts_per_tok", 2);
  model.units.push_back(embedding("model.embed_tokens", vocab, dims.hidden, tied));
  for (int64_t i = 0; i < layers; ++i) model.units.push_back(llama_layer(family, dims, i));
  model.units.push_back(module_unit("model.norm", {dims.hidden}));
  if (!tied) model.units.push_back(module_unit("lm_head", {vocab, dims.hidden}));
  return model;
}

UnitShapes gpt2_layer(int64_t hidden, int64_t inner, int64_t index) {
  UnitBuilder unit(concat("transformer.h.", index));
  unit.layer_norm("ln_1", hidden);
  unit.conv1d("attn.c_attn", hidden, 3 * hidden);
  unit.conv1d("attn.c_proj", hidden, hidden);
  unit.layer_norm("ln_2", hidden);
  unit.conv1d("mlp.c_fc", hidden, inner);
  unit.conv1d("mlp.c_proj", inner, hidden);
  return unit.build();
}

ModelShapes gpt2(Fields& fields) {
  // Some fields have two names, and transformers accepts both.
  const auto size = [&](const char* key, const char* alias, int64_t fallback, int64_t max = kMaxSize) {
    return fields.size(fields.has(alias) ? alias : key, fallback, max);
  };
  const int64_t vocab = fields.size("vocab_size", 50257);
  const int64_t positions = size("n_positions", "max_position_embeddings", 1024);
  const int64_t hidden = size("n_embd", "hidden_size", 768);
  const int64_t layers = size("n_layer", "num_hidden_layers", 12, kMaxLayers);
  int64_t inner = fields.optional_size("n_inner", 0);
  if (inner == 0) inner = 4 * hidden;
  ZS_CHECK(!fields.flag("add_cross_attention", false), fields.source(),
           ": \"add_cross_attention\" is true: only decoders without cross-attention can be planned");
  const bool tied = fields.flag("tie_word_embeddings", true);

  const int64_t heads = size("n_head", "num_attention_heads", 12);
  check_divides(fields, "n_head", heads, "n_embd", hidden);
  ModelShapes model{"gpt2", hidden, {layers, inner, heads, heads, hidden / heads, vocab}, {}, {}};
  model.units.push_back(embedding("transformer.wte", vocab, hidden, tied));
  model.units.push_back(module_unit("transformer.wpe", {positions, hidden}));
  for (int64_t i = 0; i < layers; ++i) model.units.push_back(gpt2_layer(hidden, inner, i));
  model.units.push_back(module_unit("transformer.ln_f", {hidden}, /*has_bias=*/true));
  if (!tied) model.units.push_back(module_unit("lm_head", {vocab, hidden}));
  return model;
}

// Throws ValueError if the model has more than kMaxParams parameters. Counts in double, because a product of sizes
// could overflow int64.
void check_count(const ModelShapes& model, const std::string& source) {
  double count = 0;
  for (const UnitShapes& unit : model.units) {
    for (const ParamShape& param : unit.params) {
      double numel = 1;
      for (const int64_t size : param.shape) numel *= double(size);
      count += numel;
    }
  }
  ZS_CHECK(count <= double(kMaxParams), source, ": describes ", count, " parameters, more than the ",
           double(kMaxParams), " that can be planned");
}

void note_architecture(const Json& json, ModelShapes& model) {
  const auto names = json.find("architectures");
  if (names == json.end() || !names->is_array() || names->empty() || !names->front().is_string()) return;
  const std::string name = names->front();
  if (name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel")) return;
  model.notes.push_back("the config names the architecture " + shown_text(name) +
                        "; planned as a causal language model");
}

}  // namespace

ModelShapes parse_model_shapes(std::string_view text, const std::string& source) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw ValueError(concat(source, " is not valid JSON: ", shown_text(error.what(), 200)));
  }
  ZS_CHECK(json.is_object(), source, ": a model's config is a JSON object, this is ", json.type_name());
  const auto type = json.find("model_type");
  ZS_CHECK(type != json.end() && type->is_string(), source, " has no \"model_type\": is it a model's config.json?");
  const std::string model_type = *type;
  Fields fields(json, source);
  ModelShapes model;
  if (model_type == "gpt2") {
    model = gpt2(fields);
  } else {
    const auto family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                     [&](const Family& known) { return known.model_type == model_type; });
    ZS_CHECK(family != kFamilies.end(), source, ": model_type \"", shown_text(model_type),
             "\" cannot be planned from its config; ", "supported are ", kSupported,
             ". For others give the parameter count (--params)");
    model = llama_like(*family, fields);
  }
  check_count(model, source);
  model.notes = fields.notes();
  note_architecture(json, model);
  return model;
}

ModelShapes load_model_shapes(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? fs::path(path) / "config.json" : fs::path(path);
  ZS_CHECK(fs::exists(file, error), "no model config at ", file.string(),
           ": give a config.json or the directory that holds it");
  return parse_model_shapes(read_text(file.string()), file.string());
}

}  // namespace zeroshard
