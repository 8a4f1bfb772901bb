#pragma once
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zeroshard::cli {

// The message of an option's check for an empty value. explain() recognises it.
inline constexpr const char* kNoValue = "has no value";

// Explains why `app` refused the command line with `error`: the word, its place, and what to do.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// Returns for example "unknown option '--nprocs'; did you mean '--nproc'?", for a word that is no option of `app`.
std::string unknown_option(const CLI::App& app, const std::string& word);

}  // namespace zeroshard::cli
