#include "data/records.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "file/shown.h"
#include "tokenizer/json_field.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;
using Format = TokenizeOptions::Format;

constexpr int kMaxDepth = 500;  // deepest nesting of any field, including fields that are not read

std::string shown_json(const Json& value) {
  return shown(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

const Json& field_of(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    std::string names;
    for (const auto& [key, value] : object.items()) names += concat(names.empty() ? "'" : ", '", shown(key), "'");
    throw ValueError(concat("there is no field '", name, "'; the record has ", names.empty() ? "none" : shown(names)));
  }
  return *found;
}

const std::string& text_of(const Json& object, const std::string& name, const std::string& place) {
  const Json& value = field_of(object, name);
  ZS_CHECK(value.is_string(), "field '", place, name, "' must be a string, it is ", shown_json(value));
  return value.get_ref<const std::string&>();
}

Role role_of(const std::string& name, const std::string& place) {
  if (name == "system") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  ZS_CHECK(name == "tool", "field '", place, "role' is '", shown(name),
           "', must be 'system', 'user', 'assistant' or 'tool'");
  return Role::kTool;
}

std::vector<Message> messages_of(const Json& record, const std::string& field) {
  const Json& list = field_of(record, field);
  ZS_CHECK(list.is_array() && !list.empty(), "field '", field, "' must be a list of messages, it is ",
           shown_json(list));
  std::vector<Message> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = concat(field, "[", i, "].");
    ZS_CHECK(list[i].is_object(), "field '", field, "[", i, "]' must be an object, it is ", shown_json(list[i]));
    messages.push_back({role_of(text_of(list[i], "role", place), place), text_of(list[i], "content", place)});
  }
  return messages;
}

// Returns the messages of a record, which has {prompt, completion} or {instruction, input, output}. `input` can be
// missing or null.
std::vector<Message> instruction_of(const Json& record, const ChatTemplate& form) {
  if (!record.contains("instruction"))
    return {{Role::kUser, text_of(record, "prompt", "")}, {Role::kAssistant, text_of(record, "completion", "")}};
  const bool with_input = record.contains("input") && !record["input"].is_null();
  return form.instruction(text_of(record, "instruction", ""), with_input ? text_of(record, "input", "") : std::string(),
                          text_of(record, "output", ""));
}

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                                 const TokenizeOptions& options)
    : tokenizer_(tokenizer), inputs_(inputs), options_(options) {
  if (options.format == Format::kChat || options.format == Format::kInstruct) {
    template_.emplace(options.template_name, tokenizer);
  } else {
    ZS_CHECK(!options.append_eos || tokenizer.eos(),
             "the tokenizer names no eos token to end documents with: use --no-append-eos, or name it in "
             "tokenizer_config.json");
  }
}

EncodedDocument DocumentEncoder::encode(const RawDocument& document) const {
  try {
    return document.json ? encode_json(document) : encode_text(document.text);
  } catch (const ValueError& error) {
    throw ValueError(concat(inputs_[document.file], ":", document.line, ": ", error.what()));
  }
}

EncodedDocument DocumentEncoder::encode_text(std::string_view text) const {
  EncodedDocument document;
  if (text.empty()) return document;
  document.ids = tokenizer_.encode(text, true, false);
  const bool ended = !document.ids.empty() && document.ids.back() == tokenizer_.eos();
  if (options_.append_eos && !ended) document.ids.push_back(*tokenizer_.eos());
  return document;
}

EncodedDocument DocumentEncoder::encode_json(const RawDocument& document) const {
  ZS_CHECK(json_depth(document.text) <= kMaxDepth, "the line has more than ", kMaxDepth, " brackets inside each other");
  Json record;
  try {
    record = Json::parse(document.text);
  } catch (const Json::parse_error& error) {
    throw ValueError(
        concat("this is not JSON in UTF-8, at byte ", error.byte, " of the line: '", shown(document.text), "'"));
  }
  ZS_CHECK(record.is_object(), "the line must be a JSON object, it is ", shown_json(record));
  const std::string& field = options_.field;
  if (options_.format == Format::kChat)
    return encode_pieces(template_->render(messages_of(record, field.empty() ? "messages" : field)), tokenizer_);
  if (options_.format == Format::kInstruct)
    return encode_pieces(template_->render(instruction_of(record, *template_)), tokenizer_);
  return encode_text(text_of(record, field.empty() ? "text" : field, ""));
}

}  // namespace zeroshard
