#include "program.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "zeroshard/error.h"

namespace zeroshard::cli {
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

int run_program(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const ValueError& error) {
    return report(error, kWrongInput);
  } catch (const std::exception& error) {
    return report(error, kFailure);
  }
}

}  // namespace zeroshard::cli
