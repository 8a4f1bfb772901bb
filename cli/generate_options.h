#pragma once
#include <string>

#include "zeroshard/generate.h"

namespace CLI {
class App;
}

namespace zeroshard::cli {

// The command line of `zeroshard generate` and of its ranks.
struct GenerateArguments {
  std::string directory, prompt, dtype = "F32", device = "auto";
  GenerateOptions options;
};

// `arguments` must live as long as `app`.
void add_generate_options(CLI::App& app, GenerateArguments& arguments);

// Throws ValueError unless `directory` is a directory.
void check_model_directory(const std::string& directory);

}  // namespace zeroshard::cli
