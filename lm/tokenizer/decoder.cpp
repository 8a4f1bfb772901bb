#include "tokenizer/decoder.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

const std::string& character(const JsonField& field) {
  const std::string& text = field.string();
  if (text.empty() || decode_utf8(text).bytes != text.size()) field.refuse("it must be one character");
  return text;
}

void join(std::vector<std::string>& tokens, std::string (*text_of)(std::string&&)) {
  std::string all;
  for (std::string& token : tokens) all += text_of(std::move(token));
  tokens.assign(1, std::move(all));
}

}  // namespace

Decoder::Decoder(const JsonField& field) {
  if (field.is_null()) {
    separator_.assign(1, ' ');
  } else {
    add(field, 0);
  }
}

void Decoder::add(const JsonField& field, int depth) {
  const std::string type = field.type();
  if (type == "Sequence") {
    field.allow_only({"type", "decoders"});
    if (depth == kMaxSequenceDepth) field.refuse("too many sequences inside each other");
    field["decoders"].each([&](const JsonField& step) { add(step, depth + 1); });
  } else if (type == "ByteLevel") {
    field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // without effect on decoding
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    field.allow_only({"type"});
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    field.allow_only({"type"});
    steps_.emplace_back(Fuse{});
  } else if (type == "Replace") {
    field.allow_only({"type", "pattern", "content"});
    const JsonField pattern = field["pattern"];
    pattern.allow_only({"String"});
    const std::string& from = pattern["String"].string();
    if (from.empty()) pattern.refuse("an empty string matches nothing");
    steps_.emplace_back(Replace{from, field["content"].string()});
  } else if (type == "Strip") {
    field.allow_only({"type", "content", "start", "stop"});
    const auto count = [&](const char* key) { return static_cast<size_t>(field[key].integer(0, INT32_MAX)); };
    steps_.emplace_back(Strip{character(field["content"]), count("start"), count("stop")});
  } else if (type == "Metaspace") {
    field.allow_only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    const bool never = field.has("prepend_scheme") && field["prepend_scheme"].string() == "never";
    steps_.emplace_back(
        Metaspace{character(field["replacement"]), !never && field.boolean_or("add_prefix_space", true)});
  } else {
    field["type"].refuse("of decoders, Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip and Metaspace are");
  }
}

void Decoder::run(const ByteLevel&, Tokens& tokens) {
  join(tokens, [](std::string&& token) { return from_byte_alphabet(token).value_or(std::move(token)); });
}

void Decoder::run(const Fuse&, Tokens& tokens) {
  join(tokens, [](std::string&& token) { return std::move(token); });
}

// Replaces each run of tokens like <0x0A> by one token that consists of these bytes.
void Decoder::run(const ByteFallback&, Tokens& tokens) {
  Tokens result;
  bool after_byte = false;
  for (std::string& token : tokens) {
    const auto byte = byte_of_token(token);
    if (byte && after_byte) {
      result.back() += static_cast<char>(*byte);
    } else {
      result.push_back(byte ? std::string(1, static_cast<char>(*byte)) : std::move(token));
    }
    after_byte = byte.has_value();
  }
  tokens = std::move(result);
}

void Decoder::run(const Replace& step, Tokens& tokens) {
  for (std::string& token : tokens) token = replaced(token, step.from, step.to);
}

void Decoder::run(const Strip& step, Tokens& tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (size_t i = 0; i < step.start && rest.starts_with(step.character); ++i)
      rest.remove_prefix(step.character.size());
    for (size_t i = 0; i < step.stop && rest.ends_with(step.character); ++i) rest.remove_suffix(step.character.size());
    token = std::string(rest);
  }
}

// Replaces every `step.replacement` by a space. If `step.drops_first` is true, removes those of the first token
// instead, even inside the token, because Hugging Face does so.
void Decoder::run(const Metaspace& step, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = replaced(tokens[i], step.replacement, i == 0 && step.drops_first ? "" : " ");
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) std::visit([&](const auto& kind) { run(kind, tokens); }, step);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += separator_;
    text += tokens[i];
  }
  return text;
}

}  // namespace zeroshard
