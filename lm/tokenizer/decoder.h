#pragma once
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/json_field.h"

namespace zeroshard {

// Turns tokens into text by the rules in the field "decoder" of tokenizer.json.
class Decoder {
 public:
  // If `field` is null, tokens are joined by spaces. Throws ValueError for unsupported decoders.
  explicit Decoder(const JsonField& field);

  // Returns the text of `tokens`. Bytes of an incomplete character stay unchanged.
  std::string decode(std::vector<std::string> tokens) const;
  // Returns whether decode() only applies from_byte_alphabet() to each token and joins the results.
  bool byte_level_only() const { return steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_[0]); }

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    std::string from, to;
  };
  struct Strip {
    std::string character;
    size_t start = 0, stop = 0;  // most characters to strip at the start and the end of a token
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first = true;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace>;
  using Tokens = std::vector<std::string>;

  void add(const JsonField& field, int depth);
  static void run(const ByteLevel& step, Tokens& tokens);
  static void run(const ByteFallback& step, Tokens& tokens);
  static void run(const Fuse& step, Tokens& tokens);
  static void run(const Replace& step, Tokens& tokens);
  static void run(const Strip& step, Tokens& tokens);
  static void run(const Metaspace& step, Tokens& tokens);

  std::vector<Step> steps_;
  std::string separator_;
};

}  // namespace zeroshard
