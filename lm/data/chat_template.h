#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/tokenizer.h"

// Turns conversations into the text formats that models are trained with, without Jinja.
namespace zeroshard {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

// Text that is either all learned or all not. `starts`: the piece begins a stretch that is encoded separately. It
// begins with a special token, at which tokenizers cut anyway, or follows one that is put before a text.
struct TextPiece {
  std::string text;
  bool learn = false;
  bool starts = false;
};

class ChatTemplate {
 public:
  // "chatml", "llama3", "llama2", "mistral", "gemma", "alpaca" or "plain". Throws ValueError for another name, or if
  // the tokenizer lacks a special token of the template.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer);

  // Answers and the token that ends each are learned. Throws ValueError if `messages` do not fit the template.
  std::vector<TextPiece> render(const std::vector<Message>& messages) const;
  // For an instruction with an input, which "alpaca" puts under a separate heading.
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
  std::string bos_, eos_;  // if the template uses them
};

struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;  // as long as ids
};

// Gives the same ids as the whole text: pieces are encoded together, and a token that lies in two pieces belongs to the
// later one.
EncodedDocument encode_pieces(const std::vector<TextPiece>& pieces, const Tokenizer& tokenizer);

}  // namespace zeroshard
