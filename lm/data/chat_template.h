#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/tokenizer.h"

// Turns conversations into the text formats with which models are trained, without Jinja.
namespace zeroshard {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

// A text that is either learned completely or not at all. If `starts` is true, the piece begins a part that is encoded
// separately. Such a piece begins with a special token, at which tokenizers cut anyway, or follows a special token that
// precedes a text.
struct TextPiece {
  std::string text;
  bool learn = false;
  bool starts = false;
};

class ChatTemplate {
 public:
  // `name` is "chatml", "llama3", "llama2", "mistral", "gemma", "alpaca" or "plain". Throws ValueError for another
  // name, or if the tokenizer lacks a special token of the template.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer);

  // Renders a conversation. Answers are learned, and so is the token that ends each answer. Throws ValueError if
  // `messages` do not fit the template.
  std::vector<TextPiece> render(const std::vector<Message>& messages) const;
  // Returns the messages for an instruction with an input, which "alpaca" puts under a separate heading.
  std::vector<Message> instruction(std::string_view instruction, std::string_view input, std::string_view output) const;

 private:
  enum class Form : uint8_t { kChatml, kLlama3, kLlama2, kMistral, kGemma, kAlpaca, kPlain };

  void render_headed(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const;
  void render_bracketed(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const;
  void render_alpaca(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const;
  void render_plain(const std::vector<Message>& messages, std::vector<TextPiece>& pieces) const;
  void begin_prose(std::vector<TextPiece>& pieces) const;
  void check_order(const std::vector<Message>& messages) const;
  std::string special(const char* what, const std::optional<int32_t>& id, const Tokenizer& tokenizer) const;

  std::string name_;
  Form form_;
  std::string bos_, eos_;  // empty if the template does not use them
};

struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;  // one entry per id
};

// Encodes pieces together, so that the ids are the same as for the whole text. A token that lies in two pieces belongs
// to the later piece.
EncodedDocument encode_pieces(const std::vector<TextPiece>& pieces, const Tokenizer& tokenizer);

}  // namespace zeroshard
