// `zeroshard-torch`: the commands of `zeroshard` that need LibTorch, as one rank. `zeroshard` starts it, so that its
// other commands need not wait for LibTorch's libraries to be loaded.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "commands.h"
#include "zeroshard/error.h"

int main(int argc, char** argv) {
  constexpr int kFailure = 1, kWrongInput = 2;
  CLI::App app("one rank of zeroshard train, or generate", "zeroshard-torch");
  app.require_subcommand(1);
  for (const auto add : {zeroshard::cli::add_train_rank_command, zeroshard::cli::add_generate_rank_command}) add(app);
  const auto report = [](const std::exception& error, int code) {
    std::cerr << "zeroshard: " << error.what() << "\n";
    return code;
  };
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongInput;
  } catch (const zeroshard::cli::Exit& exit) {
    return exit.code;
  } catch (const zeroshard::ValueError& error) {
    return report(error, kWrongInput);
  } catch (const std::exception& error) {
    return report(error, kFailure);
  }
}
