#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zeroshard/tokenizer.h"

// Turns text into token files. `zeroshard tokenize` calls these functions. docs/token-files.md describes the kinds of
// input.
namespace zeroshard {

class Io;

struct TokenizeOptions {
  // kAuto: kJsonl for names that end in .jsonl, .ndjson or .json, else kText. In files whose names end in .parquet
  // every row is a record, so for them kAuto and kText mean kJsonl.
  enum class Format : uint8_t { kAuto, kText, kJsonl, kChat, kInstruct };
  // Says what ends a document of a text file in addition to the end of the file. kFile: nothing. kBlankLines: blank
  // lines. kLine: a line that equals `separator`.
  enum class Split : uint8_t { kFile, kBlankLines, kLine };

  Format format = Format::kAuto;
  // For kJsonl, the field of a record that has the text; empty: "text". For kChat, the field that has the messages;
  // empty: "messages".
  std::string field;
  std::string template_name =
      "chatml";                // for kChat and kInstruct: chatml, llama3, llama2, mistral, gemma, alpaca, plain
  bool append_eos = true;      // true: documents of kText and kJsonl end with eos; templates have ends of their own
  Split split = Split::kFile;  // for kText
  std::string separator;
  // Sets `split` from `text`, the value of an option. "blank" means kBlankLines. Any other text means kLine with that
  // text as separator. Does nothing for "".
  void split_at(const std::string& text) {
    if (text.empty()) return;
    split = text == "blank" ? Split::kBlankLines : Split::kLine;
    separator = text;
  }
  int threads = 0;                                  // 0: one per core
  int64_t max_document_bytes = int64_t{256} << 20;  // a longer text or line is an error
  const std::atomic<bool>* stop = nullptr;          // tokenize_files() throws when this becomes true
};

// The names that command lines and configurations have for the formats.
inline constexpr std::pair<const char*, TokenizeOptions::Format> kTokenizeFormats[] = {
    {"auto", TokenizeOptions::Format::kAuto},
    {"text", TokenizeOptions::Format::kText},
    {"jsonl", TokenizeOptions::Format::kJsonl},
    {"chat", TokenizeOptions::Format::kChat},
    {"instruct", TokenizeOptions::Format::kInstruct}};

struct TokenizeReport {
  int64_t documents = 0, tokens = 0, learned = 0, bytes = 0;  // bytes: size of the input
  int64_t empty = 0;                                          // number of documents without text, which are left out
  double seconds = 0;
};

// Writes the tokens of the documents of `inputs`, in order, to the token file `output`. That file gets its name only
// when it is whole and on the disk for good. Throws IoError, or a ValueError that names the file, line and field of an
// unusable document. Throws ValueError before it writes anything if `output` is the same file as an input.
TokenizeReport tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                              const std::string& output, const TokenizeOptions& options);
TokenizeReport tokenize_files(Io& io, const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                              const std::string& output, const TokenizeOptions& options);

}  // namespace zeroshard
