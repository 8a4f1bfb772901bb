#include "train/text_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "comm/comm.h"
#include "file/hash.h"
#include "zeroshard/tokenize.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;

// Returns the name of the token file for a text. The name depends on the text's path, size and time of the last change,
// on the tokenizer, and on the options of tokenizing. So a changed text gets another token file.
std::string name_of_tokens(const std::string& text, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  const fs::path path(text);
  const auto written = fs::last_write_time(path).time_since_epoch().count();
  const std::string key =
      concat(fs::absolute(path).string(), '\n', fs::file_size(path), '\n', written, '\n', tokenizer.digest(), '\n',
             static_cast<int>(options.format), '\n', options.field, '\n', options.template_name, '\n',
             options.append_eos, '\n', static_cast<int>(options.split), '\n', options.separator);
  return concat(path.stem().string(), "-", hash_bytes(key.data(), static_cast<int64_t>(key.size())), ".tokens");
}

// Makes the token files of texts that have none yet. Loads the tokenizer at the first text.
class Tokens {
 public:
  explicit Tokens(const TrainOptions& options) : options_(options) {}

  std::string of(const std::string& text) {
    if (!fs::exists(text)) throw IoError(concat("cannot open '", text, "' (train.data): there is no such file"));
    ZS_CHECK(fs::file_size(text) > 0, "'", text, "' (train.data) is empty: leave it out");
    if (!tokenizer_) tokenizer_ = load_tokenizer(options_.model);
    const fs::path folder = fs::path(options_.output) / "tokens";
    const std::string tokens = (folder / name_of_tokens(text, *tokenizer_, options_.text)).string();
    if (fs::exists(tokens)) return tokens;
    fs::create_directories(folder);
    tokenize_files(*tokenizer_, {text}, tokens, options_.text);
    return tokens;
  }

 private:
  const TrainOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

bool is_text(const std::string& path) {
  constexpr std::array kEnds = {".txt", ".jsonl", ".ndjson", ".json", ".parquet"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return path.ends_with(end); });
}

void tokenize_texts(TrainOptions& options) {
  Tokens tokens(options);
  for (std::vector<std::string>* files : {&options.data, &options.validation_data})
    for (std::string& file : *files)
      if (is_text(file)) file = tokens.of(file);
}

bool tokenize_texts(TrainOptions& options, World& world, const std::atomic<bool>& stop) {
  options.text.stop = &stop;
  if (world.rank() == 0) {
    try {
      tokenize_texts(options);
    } catch (const Error&) {
      if (!stop) throw;
    }
  }
  // Waits in the communicator of checkpoints, which has the longest time-out, because rank 0 can have much to read.
  if (world.checkpoint() != nullptr) world.checkpoint()->barrier("texts become tokens");
  if (world.mean(stop ? 1 : 0) > 0) return false;
  if (world.rank() != 0) tokenize_texts(options);  // makes no files if those of rank 0 are there
  return true;
}

}  // namespace zeroshard
