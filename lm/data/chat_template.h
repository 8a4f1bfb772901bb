#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/tokenizer.h"

// Conversations as text in the forms that models are trained with, without Jinja.
namespace zeroshard {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

// Text that is all learned or all not. `starts` a stretch that is encoded by itself: it begins with a special token, at
// which tokenizers cut in any case, or comes behind one that is put before a text.
struct TextPiece {
  std::string text;
  bool learn = false;
  bool starts = false;
};

class ChatTemplate {
 public:
  // "chatml", "llama3", "llama2", "mistral", "gemma", "alpaca" or "plain". Throws ValueError for another name, or when
  // the tokenizer lacks a special token of the form.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer);

  // Answers and the token that ends each are learned. Throws ValueError, of what in `messages` does not suit the form.
  std::vector<TextPiece> render(const std::vector<Message>& messages) const;
  // Of an instruction with an input, which "alpaca" puts under a heading of its own.
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
  std::string bos_, eos_;  // where the form has them
};

struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;  // as long as ids
};

// The same ids as the whole text has: pieces are encoded together, and a token that lies in two of them is of the
// later.
EncodedDocument encode_pieces(const std::vector<TextPiece>& pieces, const Tokenizer& tokenizer);

}  // namespace zeroshard
