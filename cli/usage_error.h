#pragma once
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zeroshard::cli {

// What is wrong with the command line that `app` has refused with `error`: the word, its place, the way out.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// "unknown option '--nprocs'; did you mean '--nproc'?" for a word that is none of `app`'s options.
std::string unknown_option(const CLI::App& app, const std::string& word);

}  // namespace zeroshard::cli
