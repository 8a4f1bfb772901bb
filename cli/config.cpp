// `zeroshard config`: explains a configuration file, and lists the keys.
#include "zeroshard/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "format.h"
#include "numbers.h"
#include "placement/offload_rules.h"
#include "plan_output.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;
using Effect = ConfigKey::Effect;

struct ExplainArguments {
  std::string file;
  int world_size = 1;
  std::optional<int64_t> hidden_size;
  bool json = false;
};

std::string hex(uint64_t value) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << value;
  return out.str();
}

// Returns an object that says under "GPU" and under "CPU" why ranks on such a device would refuse the offload of
// `config`. Lacks the key of a device on which ranks would accept the offload.
Json refusals(const Config& config) {
  Json json = Json::object();
  for (const bool on_device : {true, false})
    if (const std::string problem = refused_offload(config, on_device); !problem.empty())
      json[on_device ? "GPU" : "CPU"] = problem;
  return json;
}

void print_json(const ParsedConfig& parsed) {
  Json values = Json::array();
  for (const ConfigValue& value : parsed.values) {
    values.push_back({{"path", value.path}, {"value", Json::parse(value.value)}, {"origin", value.origin}});
  }
  const Json json{
      {"world_size", parsed.config.world_size},
      {"values", values},
      {"placement", placements_as_json(plan_kinds_of_units(plan_options(parsed.config, is_for_device(parsed.config))),
                                       /*sizes=*/false)},
      {"open", parsed.open},
      {"refused", refusals(parsed.config)},
      {"without_effect", parsed.without_effect},
      {"unknown", parsed.unknown},
      {"digest", hex(parsed.config.digest())}};
  std::cout << json_text(json);
}

void print_table(const ParsedConfig& parsed) {
  constexpr size_t kWidest = 40;  // so that one long value does not push the origins of all values to the right
  size_t path_width = 0, value_width = 0;
  for (const ConfigValue& value : parsed.values) {
    path_width = std::max(path_width, value.path.size());
    value_width = std::max(value_width, std::min(kWidest, value.value.size()));
  }
  std::cout << std::left;
  for (const ConfigValue& value : parsed.values) {
    std::cout << std::setw(int(path_width)) << value.path << " = " << std::setw(int(value_width)) << value.value
              << "  (" << value.origin << ")\n";
  }
  const int ranks = parsed.config.world_size;
  std::cout << "\nWhere state lies, stage " << parsed.config.stage << ", " << ranks << (ranks == 1 ? " rank" : " ranks")
            << ":\n";
  print_placement_table(plan_kinds_of_units(plan_options(parsed.config, is_for_device(parsed.config))),
                        /*sizes=*/false);
  if (parsed.config.placement.size() > 1) std::cout << "  Of several rules for one unit the last counts.\n";
  if (!parsed.open.empty())
    std::cout << "\nOpen values count here as their defaults. A run in which nobody fills them in is refused.\n";
  const Json refused = refusals(parsed.config);
  for (const auto& [where, problem] : refused.items())
    std::cout << "\nRanks on a " << where << " refuse it: " << problem.get<std::string>() << "\n";
  if (!parsed.without_effect.empty()) std::cout << "\nWithout effect:\n";
  for (const std::string& line : parsed.without_effect) std::cout << "  " << line << "\n";
  if (!parsed.unknown.empty()) std::cout << "\nUnknown, and ignored as DeepSpeed does:\n";
  for (const std::string& line : parsed.unknown) std::cout << "  " << line << "\n";
}

void explain(const ExplainArguments& arguments) {
  ConfigContext context;
  context.world_size = arguments.world_size;
  context.hidden_size = arguments.hidden_size;
  context.leave_open = true;
  const ParsedConfig parsed = load_config(arguments.file, context);
  arguments.json ? print_json(parsed) : print_table(parsed);
}

void print_keys() {
  std::string only_for;
  for (const ConfigKey& key : config_keys()) {
    if (key.only_for != only_for) std::cout << "\n" << key.only_for << "\n";
    only_for = key.only_for;
    std::cout << (only_for.empty() ? "" : "  ") << key.path << ", " << key.allowed << ", default " << key.default_value;
    const char* effect = key.effect == Effect::kYes    ? ""
                         : key.effect == Effect::kNone ? "no effect: "
                                                       : "unsupported: ";
    std::cout << ": " << effect << key.help << "\n";
  }
}

std::string names_of(const ConfigKey& key) {
  std::ostringstream names;
  names << '`' << key.path << '`';
  for (const std::string& alias : key.aliases) names << ", also `" << alias << '`';
  return names.str();
}

void print_markdown_rows(const std::vector<ConfigKey>& keys, Effect effect, const std::string& only_for) {
  const char* last = effect == Effect::kYes ? "what it does" : effect == Effect::kNone ? "why it has no effect" : "why";
  std::cout << "| key | allowed | default | " << last << " |\n|---|---|---|---|\n";
  for (const ConfigKey& key : keys) {
    if (key.effect != effect || key.only_for != only_for) continue;
    std::cout << "| " << names_of(key) << " | " << key.allowed << " | `" << key.default_value << "` | " << key.help
              << " |\n";
  }
}

void print_markdown() {
  const std::vector<ConfigKey> keys = config_keys();
  std::cout << "## Keys with an effect\n\n";
  print_markdown_rows(keys, Effect::kYes, "");
  std::vector<std::string> types;
  for (const ConfigKey& key : keys) {
    if (!key.only_for.empty() && (types.empty() || types.back() != key.only_for)) types.push_back(key.only_for);
  }
  for (const std::string& type : types) {
    std::cout << "\n### " << type << "\n\n";
    print_markdown_rows(keys, Effect::kYes, type);
  }
  std::cout
      << "\n## Keys of features that zeroshard does not have\n\n"
         "Accepted with the values listed, which ask for nothing, or for what is so anyway; any other value is an "
         "error.\n\n";
  print_markdown_rows(keys, Effect::kUnsupported, "");
  std::cout
      << "\n## Keys without effect\n\nUnderstood and checked; `zeroshard config explain` names those a file has.\n\n";
  print_markdown_rows(keys, Effect::kNone, "");
}

}  // namespace

void add_config_command(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "Explains configuration files and lists their keys");
  config->require_subcommand(1);

  auto arguments = std::make_shared<ExplainArguments>();  // shared, so that it lives as long as the callback
  CLI::App* explain_app = config->add_subcommand("explain", "Prints every resolved value and where it comes from");
  explain_app->add_option("file", arguments->file, "Training config, JSON as DeepSpeed's")->required();
  add_int(*explain_app, "--world-size", {.min = 1}, arguments->world_size, "Number of ranks (default: 1)");
  add_int(*explain_app, "--hidden-size", {.min = 1}, arguments->hidden_size,
          "The model's hidden size, for values that are \"auto\"");
  explain_app->add_flag("--json", arguments->json, "Print JSON");
  explain_app->callback([arguments] { explain(*arguments); });

  auto markdown = std::make_shared<bool>(false);
  CLI::App* keys_app = config->add_subcommand("keys", "Lists every key with its default");
  keys_app->add_flag("--markdown", *markdown, "Print tables in Markdown");
  keys_app->callback([markdown] { *markdown ? print_markdown() : print_keys(); });
}

}  // namespace zeroshard::cli
