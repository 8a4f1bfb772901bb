#include "program.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "base/standard_streams.h"
#include "usage_error.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

constexpr int kFailure = 1, kWrongInput = 2;

int report(const std::string& message, int code) {
  std::cerr << "zeroshard: " << message << "\n";
  return code;
}

// Returns the exit code 0 if all output could be written. Otherwise reports why not, for example because the disk is
// full, and returns kFailure.
int check_output() {
  errno = 0;
  bool written = bool(std::cout.flush());
  written = std::fflush(stdout) == 0 && written;
  if (written && std::ferror(stdout) == 0) return 0;
  const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  return report("standard output cannot be written" + reason, kFailure);
}

// Makes the options of `app` and of its subcommands refuse empty values. CLI11 would read such a value as 0, or as if
// the option were not given. Leaves out positional and required options, because the commands themselves check those.
void refuse_empty_values(CLI::App& app) {
  const auto check = [](const std::string& text) { return std::string(text.empty() ? kNoValue : ""); };
  for (CLI::Option* option : app.get_options())
    if (option->nonpositional() && option->get_items_expected_max() > 0 && !option->get_required())
      option->check(check);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) refuse_empty_values(*command);
}

}  // namespace

int run_program(CLI::App& app, int argc, const char* const* argv) {
  open_standard_streams();
  ::signal(SIGXFSZ, SIG_IGN);  // so that writing beyond the limit on file sizes fails with an error, instead of ending
                               // the process
  refuse_empty_values(app);
  try {
    app.parse(argc, argv);
    return check_output();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // for --help and --version
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
