#pragma once
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zeroshard::cli {

// The message of an option's check for an empty value. explain() recognises such an error by this text.
inline constexpr const char* kNoValue = "has no value";

// Returns why `app` refused the command line with `error`: the wrong word, the command or option that the word belongs
// to, and what to write instead. For an error that it does not know, returns the message of CLI11.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// Returns the message for `word`, which is no option of `app`, such as "unknown option '--nprocs'; did you mean
// '--nproc'?".
std::string unknown_option(const CLI::App& app, const std::string& word);

}  // namespace zeroshard::cli
