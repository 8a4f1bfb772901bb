#include "data/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

// Returns `text` without white space at its ends. For ASCII text it removes the same characters as strip() in Python
// and Jinja.
std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f\x1c\x1d\x1e\x1f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

const char* name_of(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      break;
  }
  return "tool";
}

constexpr std::string_view kAlpacaInput = "\n\n### Input:\n";
constexpr std::string_view kAlpacaTask = "Below is an instruction that describes a task";

std::string alpaca_preamble(bool with_input) {
  return concat(kAlpacaTask, with_input ? ", paired with an input that provides further context" : "",
                ". Write a response that appropriately completes the request.");
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& name, const Tokenizer& tokenizer) : name_(name) {
  constexpr std::array<std::pair<const char*, Form>, 7> kForms{{{"chatml", Form::kChatml},
                                                                {"llama3", Form::kLlama3},
                                                                {"llama2", Form::kLlama2},
                                                                {"mistral", Form::kMistral},
                                                                {"gemma", Form::kGemma},
                                                                {"alpaca", Form::kAlpaca},
                                                                {"plain", Form::kPlain}}};
  const auto* const found = std::find_if(kForms.begin(), kForms.end(), [&](const auto& f) { return name == f.first; });
  ZS_CHECK(found != kForms.end(), "the template '", name,
           "' is not known; there are chatml, llama3, llama2, mistral, gemma, alpaca and plain");
  form_ = found->second;
  const auto needs = [&](const char* token) {
    ZS_CHECK(tokenizer.id_of(token), "the template '", name, "' needs the token '", token,
             "', which the tokenizer does not have: choose the template of the model");
  };
  if (form_ == Form::kChatml) {
    for (const char* const token : {"<|im_start|>", "<|im_end|>"}) needs(token);
  } else if (form_ == Form::kLlama3) {
    for (const char* const token : {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})
      needs(token);
  } else if (form_ == Form::kGemma) {
    for (const char* const token : {"<start_of_turn>", "<end_of_turn>"}) needs(token);
    bos_ = special("bos", tokenizer.bos(), tokenizer);
  } else {
    eos_ = special("eos", tokenizer.eos(), tokenizer);
    // The templates alpaca and plain begin with BOS only if the tokenizer puts BOS before every text.
    const bool prose = form_ == Form::kAlpaca || form_ == Form::kPlain;
    const std::vector<int32_t> around = prose ? tokenizer.encode("", true, false) : std::vector<int32_t>();
    if (!prose || (tokenizer.bos() && !around.empty() && around.front() == *tokenizer.bos()))
      bos_ = special("bos", tokenizer.bos(), tokenizer);
  }
}

std::string ChatTemplate::special(const char* what, const std::optional<int32_t>& id,
                                  const Tokenizer& tokenizer) const {
  ZS_CHECK(id, "the template '", name_, "' needs the tokenizer's ", what, " token, which it does not name");
  return tokenizer.token(*id);
}

void ChatTemplate::check_order(const std::vector<Message>& messages) const {
  const size_t first = !messages.empty() && messages[0].role == Role::kSystem ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const Role expected = (i - first) % 2 == 0 ? Role::kUser : Role::kAssistant;
    ZS_CHECK(messages[i].role == expected, "message ", i, " is of '", name_of(messages[i].role),
             "', but the template '", name_, "' needs '", name_of(expected),
             "' there: user and assistant take turns, after one system message");
  }
}

std::vector<TextPiece> ChatTemplate::render(const std::vector<Message>& messages) const {
  const auto answers = [](const Message& message) { return message.role == Role::kAssistant; };
  ZS_CHECK(std::any_of(messages.begin(), messages.end(), answers),
           "there is no message of 'assistant', so nothing to learn");
  std::vector<TextPiece> pieces;
  switch (form_) {
    case Form::kChatml:
    case Form::kLlama3:
    case Form::kGemma:
      render_headed(messages, pieces);
      break;
    case Form::kLlama2:
    case Form::kMistral:
      check_order(messages);
      render_bracketed(messages, pieces);
      break;
    case Form::kAlpaca:
      check_order(messages);
      render_alpaca(messages, pieces);
      break;
    case Form::kPlain:
      render_plain(messages, pieces);
      break;
  }
  return pieces;
}

// Renders each message after a heading with its role. The templates llama3 and gemma begin with BOS. Throws ValueError
// for gemma if the roles do not alternate or if there is a system message.
void ChatTemplate::render_headed(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const {
  struct Marks {
    const char *before_role, *after_role, *end, *after_end;
  };
  const Marks marks = form_ == Form::kChatml   ? Marks{"<|im_start|>", "\n", "<|im_end|>", "\n"}
                      : form_ == Form::kLlama3 ? Marks{"<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", ""}
                                               : Marks{"<start_of_turn>", "\n", "<end_of_turn>", "\n"};
  if (form_ == Form::kLlama3) pieces.push_back({"<|begin_of_text|>", false, true});
  if (form_ == Form::kGemma) {
    check_order(messages);
    ZS_CHECK(messages[0].role != Role::kSystem,
             "message 0 is of 'system', which the template 'gemma' does not have: put it into the user's message");
    pieces.push_back({bos_, false, true});
  }
  for (const Message& message : messages) {
    const bool answer = message.role == Role::kAssistant;
    const char* const role = answer && form_ == Form::kGemma ? "model" : name_of(message.role);
    const std::string content = form_ == Form::kChatml ? message.content : trimmed(message.content);
    pieces.push_back({concat(marks.before_role, role, marks.after_role), false, true});
    pieces.push_back({concat(content, marks.end), answer, false});
    if (*marks.after_end != '\0') pieces.push_back({marks.after_end, false, false});
  }
}

// Renders each message of the user in [INST], and each answer with EOS after it. The first message of the user includes
// the system message. With llama2, BOS comes before each message of the user. With mistral, BOS comes once, at the
// beginning.
void ChatTemplate::render_bracketed(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const {
  const bool llama = form_ == Form::kLlama2;
  std::string system;
  if (!llama) pieces.push_back({bos_, false, true});
  for (const Message& message : messages) {
    if (message.role == Role::kSystem) {
      system = llama ? concat("<<SYS>>\n", message.content, "\n<</SYS>>\n\n") : message.content + "\n\n";
    } else if (message.role == Role::kUser) {
      const std::string content = system + message.content;
      pieces.push_back(
          {concat(llama ? bos_ : "", "[INST] ", llama ? trimmed(content) : content, " [/INST]"), false, llama});
      system.clear();
    } else if (llama) {
      pieces.push_back({concat(" ", trimmed(message.content), " ", eos_), true, false});
    } else {
      pieces.push_back({message.content + eos_, true, false});
    }
  }
}

void ChatTemplate::render_alpaca(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const {
  std::string before = alpaca_preamble(messages[0].content.find(kAlpacaInput) != std::string::npos);
  for (const Message& message : messages) {
    if (message.role == Role::kSystem) {
      before = message.content;
    } else if (message.role == Role::kUser) {
      pieces.push_back(
          {concat(before, "\n\n### Instruction:\n", message.content, "\n\n### Response:\n"), false, false});
      before.clear();
    } else {
      pieces.push_back({message.content + eos_, true, false});
    }
  }
  begin_prose(pieces);
}

// Renders the contents of the messages one after another, with EOS after each answer. Adds no separators, because the
// contents include them.
void ChatTemplate::render_plain(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const {
  for (const Message& message : messages) {
    const bool answer = message.role == Role::kAssistant;
    pieces.push_back({answer ? message.content + eos_ : message.content, answer, false});
  }
  begin_prose(pieces);
}

// Does nothing if the template does not use BOS. Otherwise puts BOS before the pieces, as a piece of its own, and sets
// `starts` in the next piece. So that piece is encoded as the beginning of a text, in the same way as a prompt for the
// trained model.
void ChatTemplate::begin_prose(std::vector<TextPiece>& pieces) const {
  if (bos_.empty()) return;
  pieces.front().starts = true;
  pieces.insert(pieces.begin(), {bos_, false, true});
}

std::vector<Message> ChatTemplate::instruction(std::string_view instruction, std::string_view input,
                                               std::string_view output) const {
  std::string user(instruction);
  if (!input.empty()) user += concat(form_ == Form::kAlpaca ? kAlpacaInput : "\n\n", input);
  return {{Role::kUser, std::move(user)}, {Role::kAssistant, std::string(output)}};
}

namespace {

// Encodes the joined text of pieces [begin, end) and appends the result to `document`. If two neighbouring pieces
// differ in `learn`, the function must know which id is the first of the later piece. To find it, the function also
// encodes only the text up to the end of the earlier piece, and compares the ids with those of the whole text. The
// later piece begins at the first id that differs. So a token that lies in both pieces belongs to the later one, and an
// answer's first token is learned.
void encode_stretch(const std::vector<TextPiece>& pieces, size_t begin, size_t end, const Tokenizer& tokenizer,
                    EncodedDocument& document) {
  std::string text;
  for (size_t i = begin; i < end; ++i) text += pieces[i].text;
  const std::vector<int32_t> ids = tokenizer.encode(text, false, true);
  size_t at = 0, text_end = 0;
  for (size_t i = begin; i < end; ++i) {
    text_end += pieces[i].text.size();
    size_t ids_end = ids.size();
    if (i + 1 < end && pieces[i].learn != pieces[i + 1].learn) {
      const std::vector<int32_t> before = tokenizer.encode(std::string_view(text).substr(0, text_end), false, true);
      ids_end = size_t(std::mismatch(ids.begin(), ids.end(), before.begin(), before.end()).first - ids.begin());
    } else if (i + 1 < end) {
      continue;  // the next piece has the same `learn`
    }
    const size_t until = std::max(at, ids_end);
    document.learn.insert(document.learn.end(), until - at, pieces[i].learn);
    at = until;
  }
  document.ids.insert(document.ids.end(), ids.begin(), ids.end());
}

}  // namespace

EncodedDocument encode_pieces(const std::vector<TextPiece>& pieces, const Tokenizer& tokenizer) {
  EncodedDocument document;
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin + 1;
    while (end < pieces.size() && !pieces[end].starts) ++end;
    encode_stretch(pieces, begin, end, tokenizer, document);
    begin = end;
  }
  return document;
}

}  // namespace zeroshard
