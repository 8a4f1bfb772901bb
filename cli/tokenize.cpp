#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "choices.h"
#include "commands.h"
#include "format.h"
#include "zeroshard/error.h"
#include "zeroshard/token_file.h"
#include "zeroshard/tokenize.h"

namespace zeroshard::cli {
namespace {

// The signal that asked this program to stop, or 0. This variable and `stop` are global, because a signal handler gets
// no pointer to other data.
std::atomic<int> caught_signal{0};
std::atomic<bool> stop{false};

// Stops the work. Also sets an alarm, which calls this function again after one second, so there is an alarm every
// second. A signal that arrives just before the program begins to wait for input does not end that wait, but the next
// alarm does.
extern "C" void on_signal(int signal) {
  if (signal != SIGALRM) caught_signal = signal;
  stop = true;
  ::alarm(1);
}

// Makes SIGINT, SIGTERM and SIGHUP stop the work, so that temporary files are deleted. When one of these signals
// arrives for the second time, it ends the process at once. A signal that this process was told to ignore stays
// ignored.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = int(SA_RESETHAND);  // without SA_RESTART, so that a signal ends a wait for input
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
  action.sa_flags = 0;
  ::sigaction(SIGALRM, &action, nullptr);
}

struct TokenizeArguments {
  std::string tokenizer, output, inspect, separator;
  std::vector<std::string> inputs;
  TokenizeOptions options;
  int64_t first_tokens = 16;
  bool json = false;
};

void print_report(const TokenizeReport& report, const std::string& output) {
  std::cout << output << ": " << report.documents << " documents, " << report.tokens << " tokens";
  if (report.learned != report.tokens) std::cout << " (" << report.learned << " learned)";
  std::cout << " of " << report.bytes << " bytes in " << std::fixed << std::setprecision(2) << report.seconds << " s, "
            << std::setprecision(0) << double(report.tokens) / std::max(report.seconds, 1e-9) << " tokens/s\n";
  if (report.empty > 0) std::cout << report.empty << " documents without text were left out\n";
}

// Throws ValueError if the file of tokens would replace a file that load_tokenizer() reads.
void check_output_is_not_of_tokenizer(const TokenizeArguments& arguments) {
  namespace fs = std::filesystem;
  std::error_code missing;  // a file whose path cannot be examined counts as another file
  const fs::path given(arguments.tokenizer);
  const fs::path directory = fs::is_directory(given, missing) ? given : given.parent_path();
  std::vector<fs::path> files = {given};
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"})
    files.push_back(directory / name);
  const fs::path output(arguments.output);
  if (output.extension() == ".model") files.push_back(directory / output.filename());
  for (const fs::path& file : files)
    if (fs::equivalent(file, output, missing))
      throw ValueError("--output '" + arguments.output + "' is the tokenizer's file '" + file.string() +
                       "', which the tokens would replace: give the output another name");
}

void write_tokens(const TokenizeArguments& arguments) {
  if (arguments.tokenizer.empty()) throw ValueError("--tokenizer is missing: a directory with tokenizer.json");
  if (arguments.output.empty()) throw ValueError("--output is missing: the file of tokens to write");
  if (arguments.inputs.empty()) throw ValueError("INPUT is missing: text, JSON lines or Parquet; - is standard input");
  check_output_is_not_of_tokenizer(arguments);
  stop_on_signals();
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(arguments.tokenizer);
  TokenizeOptions options = arguments.options;
  options.stop = &stop;
  options.split_at(arguments.separator);
  try {
    print_report(tokenize_files(*tokenizer, arguments.inputs, arguments.output, options), arguments.output);
  } catch (const Error&) {
    if (!stop) throw;
    std::cerr << "zeroshard: interrupted; " << arguments.output << " was not written\n";
    throw Exit{128 + caught_signal};
  }
}

nlohmann::ordered_json to_json(const TokenFileInfo& info, const std::vector<int32_t>& first) {
  nlohmann::ordered_json json{{"path", info.path},     {"format", info.format},       {"bytes", info.bytes},
                              {"tokens", info.tokens}, {"documents", info.documents}, {"id_bytes", info.id_bytes},
                              {"masked", info.masked}, {"learned", info.learned},     {"first_tokens", first}};
  if (info.vocab_size > 0) json["vocab_size"] = info.vocab_size;
  if (info.max_id >= 0) json["max_id"] = info.max_id;
  if (!info.tokenizer.empty()) json["tokenizer"] = info.tokenizer;
  return json;
}

void inspect(const TokenizeArguments& arguments) {
  if (!arguments.inputs.empty() || !arguments.output.empty())
    throw ValueError("--inspect FILE takes neither INPUT nor --output");
  const TokenFile file(arguments.inspect);
  const TokenFileInfo& info = file.info();
  std::vector<int32_t> first(size_t(std::clamp<int64_t>(arguments.first_tokens, 0, info.tokens)));
  file.read(0, first);
  if (arguments.json) {
    std::cout << json_text(to_json(info, first));
  } else {
    std::cout << info.path << ": " << info.tokens << " tokens of " << info.id_bytes << " bytes in " << info.documents
              << " documents, format " << info.format << "\n";
    if (info.vocab_size > 0)
      std::cout << "  vocabulary of " << info.vocab_size << " ids, the largest here is " << info.max_id << "\n";
    if (!info.tokenizer.empty()) std::cout << "  tokenizer " << info.tokenizer << "\n";
    if (info.masked) std::cout << "  " << info.learned << " tokens are learned, the others are read only\n";
    std::cout << "  begins with";
    for (const int32_t id : first) std::cout << " " << id;
    std::cout << "\n";
    if (!arguments.tokenizer.empty()) {
      const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(arguments.tokenizer);
      if (!info.tokenizer.empty() && tokenizer->digest() != info.tokenizer)
        throw ValueError(info.path + " was made with tokenizer " + info.tokenizer + ", but " + arguments.tokenizer +
                         " is " + tokenizer->digest());
      std::cout << "  "
                << nlohmann::json(tokenizer->decode(first, false))
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << "\n";
    }
  }
  file.check_ids(INT64_C(1) << 31);
  const std::vector<std::string> damaged = file.verify();
  for (const std::string& line : damaged) std::cerr << "zeroshard: " << line << "\n";
  if (!damaged.empty()) throw Exit{1};
  if (!arguments.json) std::cout << (info.format == "zeroshard" ? "  whole\n" : "  has no checksums\n");
}

void add_options(CLI::App& app, TokenizeArguments& arguments) {
  TokenizeOptions& options = arguments.options;
  app.add_option("--tokenizer", arguments.tokenizer, "A directory with tokenizer.json or tokenizer.model, or the file");
  app.add_option("--output", arguments.output, "The file of tokens to write");
  app.add_option("INPUT", arguments.inputs, "Text, a JSON object per line, or Parquet; - is standard input");
  const std::map<std::string, TokenizeOptions::Format> formats(std::begin(kTokenizeFormats),
                                                               std::end(kTokenizeFormats));
  app.add_option_function<std::string>(
         "--format",
         [formats, &options](const std::string& name) { options.format = choose(formats, name, "--format"); },
         "text; jsonl: records with a text; chat: with messages; instruct: {prompt, completion} or "
         "{instruction, input, output}; auto: by the name, text or jsonl. Rows of Parquet are records")
      ->type_name("FORMAT")
      ->default_str("auto");
  app.add_option("--field", options.field, "Of a record or a row: its text or messages (default: text, messages)");
  app.add_option("--template", options.template_name, "chatml, llama3, llama2, mistral, gemma, alpaca or plain")
      ->capture_default_str();
  app.add_flag("--append-eos,!--no-append-eos", options.append_eos, "End each document with the tokenizer's eos")
      ->default_str("true");
  app.add_option("--separator", arguments.separator,
                 "Line that divides documents of a text, such as '<|endoftext|>'; blank: blank lines do (default: a "
                 "file is a document)");
  app.add_option("--threads", options.threads, "0: one per core")->capture_default_str();
  app.add_option("--max-document-bytes", options.max_document_bytes, "Longer ones are an error")->capture_default_str();
  app.add_option("--inspect", arguments.inspect, "Print what is in a file of tokens, and check it; 1 when damaged");
  app.add_option("--first", arguments.first_tokens, "With --inspect: how many tokens to print")->capture_default_str();
  app.add_flag("--json", arguments.json, "With --inspect: as JSON");
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("tokenize", "Makes files of tokens of text, and inspects them");
  auto arguments = std::make_shared<TokenizeArguments>();
  add_options(*command, *arguments);
  command->callback([=] {
    if (arguments->inspect.empty()) {
      write_tokens(*arguments);
    } else {
      inspect(*arguments);
    }
  });
}

}  // namespace zeroshard::cli
