#include "usage_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <vector>

#include "base/suggest.h"

namespace zeroshard::cli {
namespace {

// The program and the subcommands that the command line names, the innermost one last.
using Chain = std::vector<const CLI::App*>;

Chain chain_of(const CLI::App& app) {
  Chain chain{&app};
  while (!chain.back()->get_subcommands().empty()) chain.push_back(chain.back()->get_subcommands().front());
  return chain;
}

// Returns the name of `app` after the names of its parents, such as "zeroshard checkpoint export".
std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

bool is_option(const std::string& word) {
  return word.size() > 1 && word.starts_with('-');
}

std::string help_of(const CLI::App& app) {
  return " `" + full_name(app) + " --help` lists all";
}

// Returns the first word that `app` does not accept, or nothing. A command that starts another program accepts every
// word, because it passes the words on.
std::optional<std::string> unplaced_word(const CLI::App& app) {
  if (app.get_prefix_command()) return {};
  for (const std::string& word : app.remaining()) {
    if (word != "--") return word;
  }
  return {};
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> known = command_names(app);
  const std::string guess = suggest_word(word, known);
  return "'" + word + "' is no command of " + full_name(app) + guess + (guess.empty() ? "; it has " : " It has ") +
         joined(known);
}

std::string unplaced(const Chain& chain, size_t at, const std::string& word) {
  const CLI::App& app = *chain[at];
  const bool needs_command = app.get_require_subcommand_min() > 0;
  if (!is_option(word)) {
    if (needs_command && app.get_subcommands().empty()) return unknown_command(app, word);
    const std::string guess = suggest_word("--" + word, option_names(app));
    return "'" + word + "' is one argument too many for " + full_name(app) + guess + (guess.empty() ? ";" : "") +
           help_of(app);
  }
  const std::string name = word.substr(0, word.find('='));
  for (size_t inner = at + 1; inner < chain.size(); ++inner) {
    if (chain[inner]->get_option_no_throw(name) != nullptr) {
      return "option '" + word + "' belongs to " + full_name(*chain[inner]) + ": write it after '" +
             chain[inner]->get_name() + "'";
    }
  }
  const std::string text = unknown_option(app, word);
  return text + (text.ends_with('?') ? "" : " of " + full_name(app) + ";") + help_of(app);
}

// Returns the option that `message`, the text of an error of CLI11, is about, or null. An error of CLI11 names the
// option only in its text. The text begins with the option's name, except that the text of a conversion error has fixed
// words before the name.
const CLI::Option* option_of(const Chain& chain, std::string message) {
  const std::string conversion = "Could not convert: ";
  if (message.starts_with(conversion)) message = message.substr(conversion.size());
  const std::string name = message.substr(0, message.find_first_of(": "));
  for (auto app = chain.rbegin(); app != chain.rend(); ++app) {
    for (const CLI::Option* option : (*app)->get_options()) {
      if (option->get_name() == name) return option;
    }
  }
  return nullptr;
}

std::string expected_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "TEXT") return "a text";
  if (type == "INT") return "a whole number";
  if (type == "UINT") return "a whole number >= 0";
  if (type == "FLOAT") return "a number";
  return type;
}

std::string values_of(const CLI::Option& option) {
  std::string text;
  for (const std::string& value : option.results()) text += (text.empty() ? "'" : ", '") + value + "'";
  return text;
}

std::string wrong_value(const CLI::Option& option, const CLI::ParseError& error) {
  const std::string name = option.get_name(), kind = error.get_name();
  const std::string meaning = option.get_description().empty() ? "" : ": " + option.get_description();
  const size_t given = option.results().size();
  if (kind == "RequiredError") return name + " is missing" + meaning;
  if (option.get_items_expected_max() == 0) return name + " takes no value, got " + values_of(option);
  if (kind == "ConversionError")
    return name + " is " + values_of(option) + ", expected " + expected_of(option) + meaning;
  const bool is_empty = kind == "ValidationError" && std::string(error.what()).ends_with(kNoValue);
  if (kind != "ArgumentMismatch" && !is_empty) return error.what();
  if (!is_empty && given > size_t(option.get_items_expected_max())) {
    return name + " is given " + std::to_string(given) + " times, as " + values_of(option) + ": once is enough";
  }
  return name + " has no value, expected " + expected_of(option) + meaning;
}

}  // namespace

std::string unknown_option(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  // A single letter gets no guess, because any two letters would count as similar.
  const std::string guess = name.size() > 2 ? suggest_word(name, option_names(app)) : "";
  return "unknown option '" + word + "'" + guess;
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const Chain chain = chain_of(app);
  for (size_t at = 0; at < chain.size(); ++at) {
    if (const auto word = unplaced_word(*chain[at])) return unplaced(chain, at, *word);
  }
  if (const CLI::Option* option = option_of(chain, error.what())) return wrong_value(*option, error);
  const CLI::App& last = *chain.back();
  if (error.get_name() == "RequiredError" && last.get_require_subcommand_min() > 0) {
    return full_name(last) + " needs a subcommand: " + joined(command_names(last));
  }
  return error.what();
}

}  // namespace zeroshard::cli
