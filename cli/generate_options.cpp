#include "generate_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include "zeroshard/error.h"

namespace zeroshard::cli {

void add_generate_options(CLI::App& app, GenerateArguments& arguments) {
  SamplingOptions& sampling = arguments.options.sampling;
  app.add_option("DIR", arguments.directory, "Directory with config.json, safetensors and a tokenizer")->required();
  app.add_option("--prompt", arguments.prompt, "What the text begins with; -: standard input")->required();
  app.add_option("--max-tokens,--max-new-tokens", arguments.options.max_tokens, "How many follow")
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "0: always the likeliest")->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "Only that many of the likeliest; 0: all")->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "Only the likeliest with this probability together")->capture_default_str();
  app.add_option("--seed", sampling.seed, "Of the choice")->capture_default_str();
  app.add_option("--dtype", arguments.dtype, "F32 or BF16")->capture_default_str();
  app.add_option("--device", arguments.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
}

void check_model_directory(const std::string& directory) {
  std::error_code unknown;
  if (std::filesystem::is_directory(directory, unknown)) return;
  const bool is_there = std::filesystem::exists(directory, unknown);
  throw ValueError("DIR is '" + directory + "', " + (is_there ? "which is no directory" : "which is not there") +
                   ": expected the directory of a model, with config.json, *.safetensors and a tokenizer, as "
                   "save_pretrained and `zeroshard train` write it");
}

}  // namespace zeroshard::cli
