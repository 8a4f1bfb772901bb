#include "program.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "usage_error.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

constexpr int kFailure = 1, kWrongInput = 2;

int report(const std::string& message, int code) {
  std::cerr << "zeroshard: " << message << "\n";
  return code;
}

}  // namespace

int run_program(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(explain(app, error), kWrongInput);
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const ValueError& error) {
    return report(error.what(), kWrongInput);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
}

}  // namespace zeroshard::cli
