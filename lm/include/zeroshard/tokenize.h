#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zeroshard/tokenizer.h"

// Text to files of tokens: `zeroshard tokenize`. docs/token-files.md describes the kinds of input.
namespace zeroshard {

class Io;

struct TokenizeOptions {
  // kAuto: kJsonl for names that end in .jsonl, .ndjson or .json, else kText. Of files whose names end in .parquet
  // every row is a record: kText is kJsonl then.
  enum class Format : uint8_t { kAuto, kText, kJsonl, kChat, kInstruct };
  // Where one document of a text ends and the next begins. kLine: a line that is `separator`.
  enum class Split : uint8_t { kFile, kBlankLines, kLine };

  Format format = Format::kAuto;
  std::string field;  // of kJsonl, with the text: "text"; of kChat, with the messages: "messages"
  std::string template_name =
      "chatml";                // of kChat and kInstruct: chatml, llama3, llama2, mistral, gemma, alpaca, plain
  bool append_eos = true;      // to each document of kText and kJsonl; templates have their own ends
  Split split = Split::kFile;  // of kText
  std::string separator;
  // As options say it: "blank" for kBlankLines, else the line; nothing for "".
  void split_at(const std::string& text) {
    if (text.empty()) return;
    split = text == "blank" ? Split::kBlankLines : Split::kLine;
    separator = text;
  }
  int threads = 0;                                  // 0: one per core
  int64_t max_document_bytes = int64_t{256} << 20;  // of a text or a line
  const std::atomic<bool>* stop = nullptr;          // once true, tokenize_files() throws
};

// The formats by the names that options have for them.
inline constexpr std::pair<const char*, TokenizeOptions::Format> kTokenizeFormats[] = {
    {"auto", TokenizeOptions::Format::kAuto},
    {"text", TokenizeOptions::Format::kText},
    {"jsonl", TokenizeOptions::Format::kJsonl},
    {"chat", TokenizeOptions::Format::kChat},
    {"instruct", TokenizeOptions::Format::kInstruct}};

struct TokenizeReport {
  int64_t documents = 0, tokens = 0, learned = 0, bytes = 0;  // bytes: of the input
  int64_t empty = 0;                                          // documents without text, which were left out
  double seconds = 0;
};

// Writes the documents of `inputs`, in their order, to `output`, which appears under its name when it is whole and
// durable. Throws IoError, or ValueError that names file, line and field of a document that cannot be used.
TokenizeReport tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                              const std::string& output, const TokenizeOptions& options);
TokenizeReport tokenize_files(Io& io, const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                              const std::string& output, const TokenizeOptions& options);

}  // namespace zeroshard
