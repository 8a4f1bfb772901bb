#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/format.h"
#include "base/read_text.h"
#include "base/suggest.h"
#include "config/batch.h"
#include "config/document.h"
#include "config/fillers.h"
#include "config/keys.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr int64_t kMaxHiddenSize = int64_t{1} << 30;

struct Resolved {
  Json value;
  std::string origin;
};

bool may_be_auto(const Allowed& allowed) {
  if (std::holds_alternative<Anything>(allowed)) return true;
  const auto* choice = std::get_if<Choice>(&allowed);
  return choice && std::find(choice->names.begin(), choice->names.end(), "auto") != choice->names.end();
}

// Returns whether a user who gives `value` to `key` expects an effect, although zeroshard ignores the key. A user who
// gives the default, null, an empty block, or a block that is switched off expects none.
bool asks_for_something(const Key& key, const Json& value) {
  if (value == key.default_value || value.is_null()) return false;
  if (!value.is_object()) return true;
  return !value.empty() && (!value.contains("enabled") || value["enabled"] != false);
}

// Returns the index of `name` among `names`, without regard to case. Returns nothing if it is not among them.
std::optional<size_t> index_of(const Json& name, std::span<const std::string_view> names) {
  const std::string wanted = lower(name.get<std::string>());
  for (size_t i = 0; i < names.size(); ++i) {
    if (lower(std::string(names[i])) == wanted) return i;
  }
  return std::nullopt;
}

// Fills a Config from the rows of the key table.
class Resolver {
 public:
  Resolver(const Json& root, const ConfigContext& context)
      : context_(context), keys_(always_known_keys()), document_(root, keys_) {}

  // Resolves all keys. Throws ConfigError for an error of the file. The message also names unknown keys that might be
  // the cause.
  ParsedConfig run() {
    try {
      return resolve_all();
    } catch (const ConfigError& error) {
      throw ConfigError(error.what() + document_.advice_on_ignored());
    }
  }

 private:
  ParsedConfig resolve_all() {
    refuse_unknown_keys();
    refuse_open_values();
    parsed_.config.world_size = context_.world_size;
    for (const Key& key : keys_) visit(key);
    if (context_.stage) {
      config().stage = *context_.stage;
      ConfigValue& entry = value_of("zero_optimization.stage");
      entry.value = std::to_string(*context_.stage);
      entry.origin = "asked for";
    }
    resolve_optimizer();
    resolve_scheduler();
    resolve_sequence_parallelism();
    resolve_mesh();
    resolve_batch_keys();
    apply_rules();
    for (const std::string& path : document_.overridden()) {
      parsed_.without_effect.push_back(path + " (flat): the same key inside its block wins");
    }
    parsed_.unknown = document_.ignored();
    return std::move(parsed_);
  }

  Config& config() { return parsed_.config; }

  void visit(const Key& key) {
    const Given* given = document_.find(key.path);
    const bool is_given = given && !given->value.is_null();
    if (is_left_open(key, given)) return leave_open(key);
    const Resolved resolved = resolve(key, given);
    const bool is_lost = key.effect == Key::Effect::kNone && asks_for_something(key, resolved.value);
    if (is_given && is_lost) {
      const std::string& written = given->written_as.empty() ? key.path : given->written_as;
      parsed_.without_effect.push_back(concat(written, " = ", shown(given->value), ": ", key.help));
    }
    if (key.effect != Key::Effect::kYes) return;
    if (key.when_auto == Auto::kDefaultTold && is_given && is_open(key, *given))
      parsed_.assumed.push_back(concat(key.path, " = \"auto\" becomes ", shown(resolved.value),
                                       ", the default: write the value that is meant"));
    if (key.required && resolved.value.is_null()) {
      throw ConfigError(concat(key.path, ": this key is required; it must be ", describe(key.allowed)));
    }
    if (key.apply && !resolved.value.is_null()) key.apply(config(), resolved.value);
    parsed_.values.push_back({key.path, resolved.value.dump(), resolved.origin});
  }

  // Returns whether the value stays "auto" for now. It does if the context allows it, nothing here says what "auto"
  // means, and transformers' Trainer or accelerate will replace it later.
  bool is_left_open(const Key& key, const Given* given) const {
    return context_.leave_open && given && is_open(key, *given) && !problem_of_auto(key).empty() &&
           !filler_of(key.path).empty();
  }

  void leave_open(const Key& key) {
    parsed_.open.push_back(key.path);
    parsed_.values.push_back({key.path, "\"auto\"", concat("open: ", filler_of(key.path))});
  }

  Resolved resolve(const Key& key, const Given* given) const {
    if (!given) return {key.default_value, "default"};
    if (given->value.is_null()) return {key.default_value, "default: null is given"};
    if (is_open(key, *given)) {
      Resolved resolved = resolve_auto(key);
      const bool is_default = key.when_auto == Auto::kDefault || key.when_auto == Auto::kDefaultTold;
      if (const std::string filler = filler_of(key.path); context_.leave_open && is_default && !filler.empty())
        resolved.origin += concat(", unless ", filler);
      return resolved;
    }
    const Json value = check_value(key, given->value);
    std::string origin = given->written_as.empty() ? "file" : "file: as " + given->written_as;
    const bool cut = value.is_number_integer() && given->value.is_number_float() && value != given->value;
    if (cut) origin += concat(": ", shown(given->value), " without its fraction");
    return {value, origin};
  }

  // Returns why "auto" is not allowed for this key, or "" if it is allowed.
  std::string problem_of_auto(const Key& key) const {
    switch (key.when_auto) {
      case Auto::kDefault:
      case Auto::kDefaultTold:
        return "";
      case Auto::kRefuse:
        return "only the caller can know this value, and left it open; must be " + describe(key.allowed);
      default:
        if (context_.hidden_size) return "";
        return "needs the model's hidden size, which is not known here: give `zeroshard config explain` --hidden-size, "
               "or write " +
               describe(key.allowed);
    }
  }

  // Returns what "auto" means for this key. Must be called after refuse_open_values().
  Resolved resolve_auto(const Key& key) const {
    const int64_t hidden = context_.hidden_size.value_or(0);
    switch (key.when_auto) {
      case Auto::kHiddenSquaredTimes09:
        return {int64_t(0.9 * double(hidden) * double(hidden)), "auto: 0.9 x hidden size squared"};
      case Auto::kTenHidden:
        return {10 * hidden, "auto: 10 x hidden size"};
      default:
        return {key.default_value, "auto: the default"};
    }
  }

  static bool is_open(const Key& key, const Given& given) { return given.value == "auto" && !may_be_auto(key.allowed); }

  // If "auto" is given to keys for which it is not allowed, and which are not left open, throws one ConfigError that
  // names all of these keys, so that the user can set all of them in one go.
  void refuse_open_values() const {
    std::vector<Key> keys = keys_;
    for (const std::vector<Key>& more : {given_optimizer_keys(), given_scheduler_keys()})
      keys.insert(keys.end(), more.begin(), more.end());
    std::vector<std::pair<std::string, std::string>> problems;
    for (const Key& key : keys) {
      const Given* given = document_.find(key.path);
      const bool may_ask = given && is_open(key, *given) && !is_left_open(key, given);
      const std::string problem = may_ask ? problem_of_auto(key) : "";
      if (!problem.empty()) problems.emplace_back(key.path, problem);
    }
    if (problems.empty()) return;
    if (problems.size() == 1) fail_value(problems.front().first, "auto", problems.front().second);
    std::string text = concat(problems.size(), " values are \"auto\", and not known here:");
    for (const auto& [path, problem] : problems) text += concat("\n  ", path, " = \"auto\": ", problem);
    throw ConfigError(text);
  }

  // If the file has unknown keys inside blocks, throws one ConfigError that names all of them. That includes keys in
  // the "params" of an optimizer or scheduler whose type is known.
  void refuse_unknown_keys() {
    if (const std::vector<Key> keys = given_optimizer_keys(); !keys.empty())
      document_.check_block("optimizer.params", keys);
    if (const std::vector<Key> keys = given_scheduler_keys(); !keys.empty())
      document_.check_block("scheduler.params", keys);
    document_.refuse_unknown();
  }

  // Returns the keys for the type of optimizer that the file names. Returns none if the type is missing or unknown.
  std::vector<Key> given_optimizer_keys() const {
    const auto index = given_type("optimizer.type", optimizer_names());
    return index ? optimizer_keys(OptimizerConfig::Type(*index)) : std::vector<Key>();
  }
  std::vector<Key> given_scheduler_keys() const {
    const auto index = given_type("scheduler.type", scheduler_names());
    return index ? scheduler_keys(*index) : std::vector<Key>();
  }

  std::optional<size_t> given_type(const std::string& path, std::span<const std::string_view> names) const {
    const Given* given = document_.find(path);
    return given && given->value.is_string() ? index_of(given->value, names) : std::nullopt;
  }

  // Returns the index of `type` among `names`. Throws ConfigError if it is not among them.
  size_t type_index(const std::string& path, const Json& type, std::span<const std::string_view> names,
                    std::span<const std::string_view> unsupported_names) const {
    if (const auto index = index_of(type, names)) return *index;
    std::string all;
    for (const std::string_view name : names) all += concat(all.empty() ? "" : ", ", name);
    if (const auto index = index_of(type, unsupported_names)) {
      fail_value(path, type, concat(unsupported_names[*index], " is not supported; must be one of ", all));
    }
    const std::vector<std::string> known(names.begin(), names.end());
    fail_value(path, type, concat("must be one of ", all, suggest_word(type.get<std::string>(), known)));
  }

  // Returns the type that `block` names, or null if there is none. Throws ConfigError if `block` has "params" without a
  // type.
  Json type_of(const std::string& block) const {
    const Given* given = document_.find(block + ".type");
    if (given && given->value.is_string()) return given->value;
    if (document_.has_block(block + ".params")) {
      throw ConfigError(concat(block, ".type: this key is required beside ", block, ".params"));
    }
    return nullptr;
  }

  void resolve_optimizer() {
    const Json type = type_of("optimizer");
    if (type.is_null()) return;
    const size_t index = type_index("optimizer.type", type, optimizer_names(), unsupported_optimizer_names());
    config().optimizer.emplace().type = OptimizerConfig::Type(index);
    if (config().optimizer->type == OptimizerConfig::Type::kMuon) config().optimizer->lr = 0.02;
    for (const Key& key : optimizer_keys(config().optimizer->type)) visit(key);
    const OptimizerConfig& optimizer = *config().optimizer;
    if (optimizer.type == OptimizerConfig::Type::kMuon) return;
    if (optimizer.nesterov && (optimizer.momentum <= 0 || optimizer.dampening != 0)) {
      fail_value("optimizer.params.nesterov", true, "needs a momentum above 0 and a dampening of 0");
    }
  }

  void resolve_scheduler() {
    const Json type = type_of("scheduler");
    if (type.is_null()) return;
    const size_t index = type_index("scheduler.type", type, scheduler_names(), {});
    config().scheduler = make_scheduler(index);
    for (const Key& key : scheduler_keys(index)) visit(key);
  }

  ConfigValue& value_of(const std::string& path) {
    return *std::find_if(parsed_.values.begin(), parsed_.values.end(),
                         [&](const ConfigValue& value) { return value.path == path; });
  }

  std::optional<int64_t> integer_of(const std::string& path) {
    const Json value = Json::parse(value_of(path).value);
    return value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
  }

  void set_batch_value(const std::string& path, int64_t value, const std::string& origin) {
    ConfigValue& entry = value_of(path);
    entry.value = std::to_string(value);
    if (origin.empty()) return;
    entry.origin = entry.origin.starts_with("auto: the default")
                       ? concat("auto: ", origin, entry.origin.substr(std::string_view("auto: the default").size()))
                       : origin;
  }

  bool is_auto(const std::string& path) const {
    const Given* given = document_.find(path);
    return given && given->value == "auto";
  }

  // If the caller has made sequence groups, takes their size from the context. Throws ConfigError if the file says
  // another size, or if the size does not divide the number of ranks.
  void resolve_sequence_parallelism() {
    const char* path = "sequence_parallel_size";
    if (const std::optional<int> size = context_.sequence_parallel_size) {
      const Given* given = document_.find(path);
      if (given && !given->value.is_null() && given->value != "auto" && config().sequence_parallel_size != *size)
        fail_value(path, given->value, concat("differs from ", *size, ", for which the sequence groups were made"));
      config().sequence_parallel_size = *size;
      value_of(path) = {path, std::to_string(*size), "of the sequence groups that the caller made"};
    }
    const int ranks = context_.world_size, size = config().sequence_parallel_size;
    if (ranks % size != 0) fail_size(path, size);
  }

  void resolve_mesh() {
    const char *own = "zeroshard.mesh.shard", *outer = "zeroshard.mesh.outer";
    const bool is_host = value_of(own).value == "\"host\"";
    const int ranks = context_.world_size;
    if (is_host) {
      if (context_.ranks_per_host == 0)
        fail_value(own, "host",
                   "needs hosts with equally many ranks, whose number the launcher says: write the number");
      config().shard_size = context_.ranks_per_host;
      value_of(own).origin += concat(": ", config().shard_size, " ranks");
    }
    std::string source = own;
    take_size_of_groups("zero_optimization.mics_shard_size", /*least=*/1, /*share_states=*/false, source);
    take_size_of_groups("zero_optimization.zero_hpz_partition_size", /*least=*/2, /*share_states=*/true, source);
    if (config().shard_size > 0 && ranks % config().shard_size != 0) fail_size(source.c_str(), config().shard_size);
    const auto tell = [&](const auto&... text) { parsed_.without_effect.push_back(concat(text...)); };
    if (config().quantized_gradients && config().shard_ranks() == ranks)
      tell(
          "zero_optimization.zero_quantized_gradients = true: it is for what goes between groups of ranks, and all "
          "ranks are one group (zeroshard.mesh.shard)");
    if (config().quantized_weights && !config().shares_states())
      tell(
          "zero_optimization.zero_quantized_weights = true: it is for the updated parameters that go between groups of "
          "ranks which share the optimizer states (zeroshard.mesh with \"outer\": \"optimizer\", or "
          "zero_hpz_partition_size), and there are none. All other gathers are exact");
    if (config().quantized_weights && config().shares_states() && config().compute_dtype == DType::kFloat32)
      tell(
          "zero_optimization.zero_quantized_weights = true: it is for 16-bit parameters, whose master weights stay "
          "exact: enable bf16 or fp16");
    if (config().quantized_weights && config().shares_states() && config().shard_ranks() == 1)
      tell(
          "zero_optimization.zero_quantized_weights = true: groups of one rank have all parameters, which users may "
          "write, and send them as they are");
    if (config().shard_size == 0 && config().groups_share_states)
      tell(outer, " = \"optimizer\": it is for groups of ranks, whose size ", own, " says");
    if (config().shard_size == ranks && ranks > 1)
      tell(source, " = ", value_of(source).value, ": all ", ranks, " ranks are one group");
    if (config().shard_size > 0 && config().shard_size < ranks && config().shard_ranks() == ranks)
      tell(source, " = ", value_of(source).value, ": at stage ", config().stage,
           " every rank has all parameters, so with ", outer, " = \"optimizer\" all ranks are one group");
  }

  // Takes the size of the groups of ranks (zeroshard.mesh.shard) from DeepSpeed's key `path`. A size below `least`
  // means that the key asks for no groups, so the function does nothing. `share_states` says whether the key makes the
  // groups share the optimizer states. `source` names the key that has given the size. If no key has given a size yet,
  // the function sets `source` to `path`. Throws ConfigError if another key contradicts this one, or if `share_states`
  // is true and the stage is not 3.
  void take_size_of_groups(const char* path, int least, bool share_states, std::string& source) {
    const char* outer = "zeroshard.mesh.outer";
    const int size = std::stoi(value_of(path).value);
    if (size < least) return;
    if (share_states && config().stage != 3)
      fail_value(path, size,
                 concat("is for stage 3, which shards parameters, and zero_optimization.stage is ", config().stage,
                        ": leave the key out, or set the stage to 3"));
    if (config().shard_size > 0 && config().shard_size != size)
      fail_value(path, size, concat("differs from ", config().shard_size, ", which ", source, " says"));
    const bool is_given = document_.find(outer) != nullptr || source != "zeroshard.mesh.shard";
    if (is_given && config().groups_share_states != share_states)
      fail_value(path, size,
                 concat("means ", outer, " = \"", share_states ? "optimizer" : "replicate",
                        "\", but the configuration says \"", share_states ? "replicate" : "optimizer", "\" (",
                        document_.find(outer) != nullptr ? outer : source.c_str(), "): leave one of the two out"));
    if (config().shard_size == 0) source = path;
    config().shard_size = size;
    config().groups_share_states = share_states;
  }

  // Throws the ConfigError for a `size` that does not divide the number of ranks.
  [[noreturn]] void fail_size(const char* path, int size) {
    std::string fits;
    for (int i = 1; i <= context_.world_size; ++i)
      if (context_.world_size % i == 0) fits += concat(fits.empty() ? "" : ", ", i);
    fail_value(path, size, concat("does not divide the ", context_.world_size, " ranks: sizes that do are ", fits));
  }

  void resolve_batch_keys() {
    const char *train = "train_batch_size", *micro = "train_micro_batch_size_per_gpu",
               *accumulation = "gradient_accumulation_steps";
    const Batch given{integer_of(train), integer_of(micro), integer_of(accumulation)};
    const bool is_left = context_.leave_open && !given.train && !given.micro;
    // The ranks of a sequence group count as one rank, because they train on the same rows.
    const ResolvedBatch batch = resolve_batch(given, context_.world_size / config().sequence_parallel_size,
                                              is_left ? 1 : context_.default_micro_batch_size);
    set_batch_value(train, batch.train, batch.train_origin);
    set_batch_value(micro, batch.micro, batch.micro_origin);
    set_batch_value(accumulation, batch.accumulation, batch.accumulation_origin);
    for (const char* path : {train, micro}) {
      if (!is_left) break;
      value_of(path) = {path, "\"auto\"", concat("open: ", is_auto(path) ? "" : "not given; ", filler_of(path))};
      parsed_.open.emplace_back(path);
    }
    config().train_batch_size = batch.train;
    config().micro_batch_size = batch.micro;
    config().grad_accumulation_steps = batch.accumulation;
  }

  // Records that the value of the key `path` has no effect at this stage, and lists the value as "none". The run logs
  // this and continues, as DeepSpeed does.
  void drop(const std::string& path, const std::string& given, std::string_view reason) {
    ConfigValue& entry = value_of(path);
    parsed_.without_effect.push_back(
        concat(path, " = \"", given, "\": ", reason, ", and zero_optimization.stage is ", config().stage));
    entry.value = "\"none\"";
    entry.origin = concat("without effect at stage ", config().stage);
  }

  void check_offload() {
    using Device = OffloadOptimizerConfig::Device;
    const OffloadOptimizerConfig& offload = config().offload_optimizer;
    if (offload.device == Device::kNone) return;
    const std::string device(name_of(offload.device));
    if (config().stage == 0) {
      drop("zero_optimization.offload_optimizer.device", device, "states leave the device at stages 1 to 3");
      config().offload_optimizer.device = Device::kNone;
      return;
    }
    if (offload.device == Device::kNvme && offload.nvme_path.empty()) {
      fail_value("zero_optimization.offload_optimizer.device", device,
                 "needs zero_optimization.offload_optimizer.nvme_path, a directory on the disk that is to be used, or "
                 "a list of such");
    }
  }

  void check_offload_param() {
    using Device = OffloadParamConfig::Device;
    const char* const key = "zero_optimization.offload_param.device";
    const OffloadParamConfig& offload = config().offload_param;
    if (offload.device == Device::kNone) return;
    const std::string device(name_of(offload.device));
    if (config().stage != 3) {
      drop(key, device, "parameters leave the device at stage 3");
      config().offload_param.device = Device::kNone;
      return;
    }
    if (offload.device == Device::kNvme && offload.nvme_path.empty()) {
      fail_value(key, device,
                 "needs zero_optimization.offload_param.nvme_path, a directory on the disk that is to be used, or a "
                 "list of such");
    }
  }

  void tell_warmup_type() {
    const auto type = std::ranges::find(parsed_.values, "scheduler.params.warmup_type", &ConfigValue::path);
    if (type == parsed_.values.end()) return;
    const std::string name = lower(Json::parse(type->value).get<std::string>());
    if (name != "log" && name != "linear")
      parsed_.without_effect.push_back(concat(type->path, " = ", type->value, ": the warm-up rises as \"log\""));
  }

  void tell_breakdown() {
    if (config().wall_clock_breakdown && config().steps_per_print == 0)
      parsed_.without_effect.push_back(
          "wall_clock_breakdown = true: the lines of steps_per_print tell the times, and steps_per_print is not set");
  }

  void check_activations() {
    if (config().offload.activations != OffloadConfig::Activations::kNvme) return;
    if (!config().offload_optimizer.nvme_path.empty() || !config().offload_param.nvme_path.empty()) return;
    fail_value("zeroshard.offload.activations", "nvme",
               "needs zero_optimization.offload_optimizer.nvme_path, or that of offload_param: a directory on the disk "
               "that is to be used, or a list of such; device may be \"none\"");
  }

  // Returns the settings of torch.amp.GradScaler, which DeepSpeed uses with autocast to fp16.
  static Fp16Config grad_scaler() {
    Fp16Config scaling;
    scaling.enabled = true;
    scaling.initial_scale_power = 16;
    scaling.loss_scale_window = 2000;
    scaling.hysteresis = 1;
    scaling.min_loss_scale = std::numeric_limits<float>::min();
    return scaling;
  }

  void resolve_autocast() {
    if (value_of("torch_autocast.enabled").value != "true") return;
    const Json dtype = Json::parse(value_of("torch_autocast.dtype").value);
    if (dtype.is_null()) throw ConfigError("torch_autocast.dtype: this key is required beside torch_autocast.enabled");
    const bool is_bf16 = dtype == "bfloat16" || dtype == "bf16";
    config().autocast_dtype = is_bf16 ? DType::kBFloat16 : DType::kFloat16;
    if (!is_bf16 && !config().fp16.enabled) config().fp16 = grad_scaler();
  }

  // Applies and checks the rules that involve more than one key.
  void apply_rules() {
    if (config().fp16.enabled) {
      if (config().compute_dtype == DType::kBFloat16) {
        fail_value("fp16.enabled", true, "fp16 and bf16 cannot both be enabled: bf16.enabled is true too");
      }
      config().compute_dtype = DType::kFloat16;
      const Fp16Config& fp16 = config().fp16;
      if (fp16.loss_scale == 0 && std::ldexp(1.0, fp16.initial_scale_power) < fp16.min_loss_scale)
        fail_value("fp16.min_loss_scale", fp16.min_loss_scale,
                   concat("must be at most 2^fp16.initial_scale_power, which is ",
                          std::ldexp(1.0, fp16.initial_scale_power), ": an overflow would raise the loss scale"));
    }
    resolve_autocast();
    check_offload();
    check_offload_param();
    tell_warmup_type();
    tell_breakdown();
    check_activations();
    if (const int64_t block = config().aio.block_size.value_or(0); block % 4096 != 0)
      fail_value("aio.block_size", block,
                 "must be a multiple of 4096, as files are read and written past the page cache");
    if (!config().placement.empty() && config().stage != 3) {
      fail_value("zeroshard.placement", Json::parse(value_of("zeroshard.placement").value),
                 concat("is for stage 3; zero_optimization.stage is ", config().stage,
                        ", where every rank has all parameters"));
    }
    if (!config().average_gradients && config().stage == 3) {
      fail_value("gradient_allreduce_op", "sum", "is for stages 0 to 2; zero_optimization.stage is 3");
    }
    if (value_of("prescale_gradients").value == "true") {
      config().prescale = config().world_size;
      value_of("gradient_predivide_factor").origin += "; unused: prescale_gradients divides by the world size";
    }
    ConfigValue& overlap = value_of("zero_optimization.overlap_comm");
    if (overlap.value == "null") overlap.value = config().overlap_comm ? "true" : "false";
  }

  const ConfigContext& context_;
  const std::vector<Key> keys_;
  Document document_;
  ParsedConfig parsed_;
};

void check_context(const ConfigContext& context) {
  if (context.world_size < 1) throw ConfigError(concat("the world size must be at least 1, got ", context.world_size));
  if (context.hidden_size && (*context.hidden_size < 1 || *context.hidden_size > kMaxHiddenSize)) {
    throw ConfigError(concat("the hidden size must be 1 to ", kMaxHiddenSize, ", got ", *context.hidden_size));
  }
  if (context.stage && (*context.stage < 0 || *context.stage > 3))
    throw ConfigError(concat("the stage must be 0 to 3, got ", *context.stage));
  if (context.default_micro_batch_size && *context.default_micro_batch_size < 1) {
    throw ConfigError(
        concat("the default micro batch size must be at least 1, got ", *context.default_micro_batch_size));
  }
}

}  // namespace

std::string ParsedConfig::warning() const {
  std::string text;
  for (const std::string& key : unknown) text += concat(text.empty() ? "" : "; ", key);
  return text.empty() ? "" : "unknown keys, ignored as DeepSpeed does: " + text;
}

ParsedConfig parse_config(std::string_view json, const ConfigContext& context) {
  check_context(context);
  return Resolver(read_json(json), context).run();
}

ParsedConfig load_config(const std::string& path, const ConfigContext& context) {
  try {
    return parse_config(read_text(path, "", kMaxConfigBytes), context);
  } catch (const ConfigError& error) {
    throw ConfigError(concat(path, ": ", error.what()));
  } catch (const IoError& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace zeroshard
