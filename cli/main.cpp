#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "commands.h"
#include "zeroshard/error.h"
#include "zeroshard/version.h"

namespace {

constexpr int kFailure = 1, kWrongInput = 2;

// CLI11's own codes start at 100; scripts expect 2 for a wrong command line.
int exit_code(const CLI::App& app, const CLI::ParseError& error) {
  const int code = app.exit(error);
  return code == 0 ? 0 : kWrongInput;
}

int report(const std::exception& error, int code) {
  std::cerr << "zeroshard: " << error.what() << "\n";
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("zeroshard trains models that do not fit on one device", "zeroshard");
  app.set_version_flag("--version", std::string("zeroshard ") + zeroshard::kVersion);
  app.require_subcommand(1);
  for (const auto add : {ZS_CLI_COMMANDS}) add(app);
  try {
    const auto arguments = zeroshard::cli::without_separator(app, {argv, argv + argc});
    app.parse(static_cast<int>(arguments.size()), arguments.data());
    return 0;
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  } catch (const zeroshard::cli::Exit& exit) {
    return exit.code;
  } catch (const zeroshard::ValueError& error) {
    return report(error, kWrongInput);
  } catch (const std::exception& error) {
    return report(error, kFailure);
  }
}
