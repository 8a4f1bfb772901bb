#include "program.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "usage_error.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

constexpr int kFailure = 1, kWrongInput = 2;

int report(const std::string& message, int code) {
  std::cerr << "zeroshard: " << message << "\n";
  return code;
}

// A full disk, or a closed descriptor.
int check_output() {
  errno = 0;
  bool written = bool(std::cout.flush());
  written = std::fflush(stdout) == 0 && written;
  if (written && std::ferror(stdout) == 0) return 0;
  const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  return report("standard output cannot be written" + reason, kFailure);
}

}  // namespace

int run_program(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return check_output();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      return check_output();
    }
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
