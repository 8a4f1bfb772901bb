#pragma once
#include <string>

#include "zeroshard/generate.h"

namespace CLI {
class App;
}

namespace zeroshard::cli {

// The values of the command line of `zeroshard generate`, and of the command lines of the ranks that it starts.
struct GenerateArguments {
  std::string directory, prompt, dtype = "F32", device = "auto";
  GenerateOptions options;
};

// Adds the options that set `arguments`, which must live as long as `app`.
void add_generate_options(CLI::App& app, GenerateArguments& arguments);

// Throws ValueError if `directory` is not a directory.
void check_model_directory(const std::string& directory);

}  // namespace zeroshard::cli
