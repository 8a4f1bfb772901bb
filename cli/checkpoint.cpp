#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "choices.h"
#include "commands.h"
#include "format.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"
#include "zeroshard/plan.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxFileBytes = 1e18;  // below the greatest int64_t

Json to_json(const CheckpointSummary& summary) {
  Json json{{"tag", summary.tag},
            {"step", summary.step},
            {"world_size", summary.world_size},
            {"bytes", summary.bytes},
            {"latest", summary.latest}};
  if (!summary.problem.empty()) json["problem"] = summary.problem;
  return json;
}

std::string megabytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << double(bytes) / 1e6 << " MB";
  return text.str();
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

void add_list(CLI::App& parent) {
  CLI::App* const app = parent.add_subcommand("list", "The checkpoints in a directory, newest first");
  auto root = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  app->add_option("DIR", *root, "Where a run saves its checkpoints")->required();
  app->add_flag("--json", *json, "As JSON");
  app->callback([=] {
    const std::vector<CheckpointSummary> summaries = list_checkpoints(*root);
    if (*json) {
      Json array = Json::array();
      for (const CheckpointSummary& summary : summaries) array.push_back(to_json(summary));
      std::cout << json_text(array);
      return;
    }
    if (summaries.empty()) std::cout << "no checkpoint in " << *root << "\n";
    for (const CheckpointSummary& summary : summaries) {
      std::cout << summary.tag;
      if (summary.problem.empty()) {
        std::cout << "  step " << summary.step << ", " << summary.world_size << " rank(s), " << megabytes(summary.bytes)
                  << (summary.latest ? "" : ", only by its tag") << "\n";
      } else {
        std::cout << "  NOT USABLE: " << summary.problem << "\n";
      }
    }
  });
}

void add_inspect(CLI::App& parent) {
  CLI::App* const app = parent.add_subcommand("inspect", "What is in a checkpoint");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false), tensors = std::make_shared<bool>(false);
  app->add_option("CHECKPOINT", *path, "A checkpoint, or a directory: its newest")->required();
  app->add_flag("--json", *json, "As JSON, with every tensor");
  app->add_flag("--tensors", *tensors, "Every tensor");
  app->callback([=] {
    const CheckpointDetails details = inspect_checkpoint(*path);
    if (*json) {
      Json object = to_json(details.summary);
      object["path"] = details.path;
      object["config_digest"] = details.config_digest;
      object["versions"] = details.versions;
      object["state"] = Json::parse(details.state);
      object["tensors"] = Json::array();
      for (const StoredTensor& tensor : details.tensors)
        object["tensors"].push_back({{"name", tensor.name},
                                     {"kind", tensor.kind},
                                     {"dtype", tensor.dtype},
                                     {"shape", tensor.shape},
                                     {"aliases", tensor.aliases},
                                     {"trainable", tensor.trainable},
                                     {"updates", tensor.updates},
                                     {"bytes", tensor.bytes}});
      std::cout << json_text(object);
      return;
    }
    std::cout << details.path << "\n  step " << details.summary.step << ", written by " << details.summary.world_size
              << " rank(s), " << megabytes(details.summary.bytes) << "\n";
    for (const auto& [name, version] : details.versions) std::cout << "  " << name << " " << version << "\n";
    std::map<std::string, std::pair<size_t, int64_t>> kinds;
    for (const StoredTensor& tensor : details.tensors) {
      ++kinds[tensor.kind].first;
      kinds[tensor.kind].second += tensor.bytes;
    }
    for (const auto& [kind, count] : kinds)
      std::cout << "  " << kind << ": " << count.first << " tensors, " << megabytes(count.second) << "\n";
    for (const StoredTensor& tensor : details.tensors) {
      if (!*tensors) break;
      std::cout << "  " << tensor.kind << "  " << tensor.name << "  " << tensor.dtype << " " << shape_text(tensor.shape)
                << (tensor.trainable || tensor.kind != "weight" ? "" : "  frozen") << "\n";
    }
  });
}

void add_verify(CLI::App& parent) {
  CLI::App* const app = parent.add_subcommand("verify", "Reads every byte and compares the checksums; 1 when damaged");
  auto path = std::make_shared<std::string>();
  app->add_option("CHECKPOINT", *path, "A checkpoint, or a directory: its newest")->required();
  app->callback([=] {
    const std::vector<std::string> wrong = verify_checkpoint(*path);
    for (const std::string& line : wrong) std::cerr << "zeroshard: " << line << "\n";
    if (!wrong.empty()) throw Exit{1};
    std::cout << inspect_checkpoint(*path).path << ": whole\n";
  });
}

// Returns the name that safetensors has for the dtype `name`. `name` is the name in a configuration ("bf16") or that of
// safetensors ("BF16"), in upper or lower case. Throws ValueError for any other name.
std::string export_dtype(const std::string& name) {
  const std::map<std::string, std::string> dtypes{
      {"fp32", "F32"}, {"bf16", "BF16"}, {"fp16", "F16"}, {"f32", "F32"}, {"f16", "F16"}};
  const std::string lower = CLI::detail::to_lower(name);
  return choose(dtypes, dtypes.contains(lower) ? lower : name, "--dtype");
}

void add_export(CLI::App& parent) {
  CLI::App* const app =
      parent.add_subcommand("export", "Writes the weights as safetensors, as Hugging Face keeps them");
  struct Arguments {
    std::string path, out, dtype, max_file_size = "5GB";
    ExportOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  app->add_option("CHECKPOINT", arguments->path, "A checkpoint, or a directory: its newest")->required();
  app->add_option("OUT", arguments->out, "The directory to write to, such as one with a config.json")->required();
  app->add_option("--dtype", arguments->dtype, "fp32 (the master weights), bf16 or fp16")->default_str("fp32");
  app->add_option("--max-file-size", arguments->max_file_size, "5GB, 200MB, ...: more files above")
      ->capture_default_str();
  app->callback([=] {
    if (!arguments->dtype.empty()) arguments->options.dtype = export_dtype(arguments->dtype);
    const double max_file_bytes = parse_bytes(arguments->max_file_size);
    if (max_file_bytes > kMaxFileBytes)
      throw ValueError("--max-file-size is '" + arguments->max_file_size + "', expected at most 1e18 bytes");
    arguments->options.max_file_bytes = int64_t(max_file_bytes);
    for (const std::string& file : export_weights(arguments->path, arguments->out, arguments->options))
      std::cout << file << "\n";
  });
}

void add_diff(CLI::App& parent) {
  CLI::App* const app = parent.add_subcommand("diff", "Compares the tensors of two checkpoints; 1 when they differ");
  auto one = std::make_shared<std::string>(), other = std::make_shared<std::string>();
  app->add_option("ONE", *one, "A checkpoint, or a directory: its newest")->required();
  app->add_option("OTHER", *other, "Another")->required();
  app->callback([=] {
    const std::vector<std::string> lines = diff_checkpoints(*one, *other);
    for (const std::string& line : lines) std::cout << line << "\n";
    if (!lines.empty()) throw Exit{1};
    std::cout << "the same tensors\n";
  });
}

// `zeroshard checkpoint convert` runs Python, because checkpoints of other libraries are pickles. Only the Python
// module zeroshard.convert can read pickles without running code in them.
void add_convert(CLI::App& parent) {
  CLI::App* const app =
      parent.add_subcommand("convert", "Imports a checkpoint of DeepSpeed (ZeRO 1 to 3, universal) or PyTorch DCP");
  struct Arguments {
    std::string source, out, tag;
    std::vector<std::string> buffers;
  };
  auto arguments = std::make_shared<Arguments>();
  app->add_option("SOURCE", arguments->source,
                  "A directory with 'latest' or *_optim_states.pt, with zero/, or with .metadata")
      ->required();
  app->add_option("OUT", arguments->out, "The directory that gets OUT/global_step<N>")->required();
  app->add_option("--tag", arguments->tag, "The name below OUT (default: global_step<N>)");
  app->add_option("--buffer", arguments->buffers, "Pattern of names that are buffers; DCP does not tell (repeatable)")
      ->allow_extra_args(false);
  app->callback([=] {
    Program program;
    program.script = "zeroshard.convert";
    program.module = true;
    if (!arguments->tag.empty()) program.arguments.push_back("--tag=" + arguments->tag);
    for (const std::string& pattern : arguments->buffers) program.arguments.push_back("--buffer=" + pattern);
    for (const std::string& text : {std::string("--"), arguments->source, arguments->out})
      program.arguments.push_back(text);
    std::vector<std::string> argv = resolve(program);
    std::vector<char*> pointers;
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    std::cout.flush();
    ::execv(pointers[0], pointers.data());
    throw Error("cannot start '" + argv[0] + "': " + std::strerror(errno));
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("checkpoint", "Lists, checks, compares, exports and imports checkpoints");
  command->require_subcommand(1);
  add_list(*command);
  add_inspect(*command);
  add_verify(*command);
  add_export(*command);
  add_diff(*command);
  add_convert(*command);
}

}  // namespace zeroshard::cli
