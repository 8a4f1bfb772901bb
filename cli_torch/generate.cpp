// Runs one rank of `zeroshard generate`.
#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>

#include "../cli/generate_options.h"
#include "checkpoint/agreement.h"
#include "commands.h"
#include "without_frames.h"
#include "zeroshard/config.h"
#include "zeroshard/error.h"
#include "zeroshard/generate.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/tokenizer.h"
#include "zeroshard/world.h"

namespace zeroshard::cli {
namespace {

// Prints the text of the prompt and of the ids that arrive. If the bytes of a character are spread over several tokens,
// prints the character when the last of them arrives.
class Printer {
 public:
  Printer(const Tokenizer& tokenizer, std::vector<int32_t> prompt) : tokenizer_(tokenizer), ids_(std::move(prompt)) {}
  void add(int32_t id) {
    ids_.push_back(id);
    print(/*end=*/false);
  }
  void finish() {
    print(/*end=*/true);
    std::cout << std::endl;
  }

 private:
  void print(bool end) {
    const std::string text = tokenizer_.decode(ids_, /*skip_special=*/true);
    const size_t whole = end ? text.size() : whole_characters(text);
    if (whole <= printed_) return;
    std::cout << text.substr(printed_, whole - printed_) << std::flush;
    printed_ = whole;
  }

  // Returns the length of `text` without an incomplete UTF-8 character at its end.
  static size_t whole_characters(const std::string& text) {
    size_t begin = text.size();
    while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin - 1]) & 0xC0) == 0x80)
      --begin;
    if (begin == 0) return text.size();
    const auto lead = static_cast<unsigned char>(text[begin - 1]);
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return text.size() - (begin - 1) < length ? begin - 1 : text.size();
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_ = 0;
};

// Returns `prompt`, or the text from standard input if `prompt` is "-". In that case rank 0 reads the text and sends it
// to all ranks. The ranks of one launcher share standard input, so if each read it, each would get a part of the text.
std::string read_prompt(const std::string& prompt, World& world) {
  if (prompt != "-") return prompt;
  std::string text;
  if (world.rank() == 0) text.assign(std::istreambuf_iterator<char>(std::cin), {});
  return broadcast_text(world.gather().host(), text, 0, "prompt");
}

// Returns the ids below the tokenizer's size that have no token. The generator must not choose them, because they
// cannot be decoded.
std::vector<int32_t> ids_without_token(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    try {
      tokenizer.token(id);
    } catch (const ValueError&) {
      ids.push_back(id);
    }
  }
  return ids;
}

void generate_with(const GenerateArguments& arguments, const Tokenizer& tokenizer, World& world) {
  const std::vector<int32_t> prompt = tokenizer.encode(read_prompt(arguments.prompt, world), true, true);
  Generator generator(arguments.directory, world, arguments.dtype);
  GenerateOptions options = arguments.options;
  options.vocab_size = tokenizer.vocab_size();
  options.never = ids_without_token(tokenizer);
  if (tokenizer.eos()) options.stop.push_back(*tokenizer.eos());
  if (world.rank() != 0) {
    generator.generate(prompt, options);
    return;
  }
  Printer printer(tokenizer, prompt);
  generator.generate(prompt, options, [&](int32_t id) { printer.add(id); });
  printer.finish();
}

void generate(const GenerateArguments& arguments) {
  check_model_directory(arguments.directory);
  const c10::Device device = choose_device(arguments.device, "--device");
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(arguments.directory);
  Config config;
  config.world_size = rank_environment().world_size;
  World world(config, device);
  try {
    without_frames([&] { generate_with(arguments, *tokenizer, world); });
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
}

}  // namespace

void add_generate_rank_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Text from the model of a Hugging Face directory");
  auto arguments = std::make_shared<GenerateArguments>();
  add_generate_options(*command, *arguments);
  command->callback([arguments] { generate(*arguments); });
}

}  // namespace zeroshard::cli
