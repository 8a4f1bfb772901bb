#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/tokenizer.h"

// Turns conversations into text in the chat formats of known models, and this text into ids. The formats are built in,
// so no Jinja interpreter is needed.
namespace zeroshard {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

// A piece of a conversation's text. The model learns all tokens of the piece as targets, or none of them. If `starts`
// is true, this piece and the pieces after it are encoded separately from the pieces before it. A piece with `starts`
// either begins with a special token, where tokenizers cut the text anyway, or follows BOS.
struct TextPiece {
  std::string text;
  bool learn = false;  // true: the tokens are targets
  bool starts = false;
};

class ChatTemplate {
 public:
  // `name` is "chatml", "llama3", "llama2", "mistral", "gemma", "alpaca" or "plain". Throws ValueError for another
  // name, or if the tokenizer lacks a special token of the template.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer);

  // Returns the text of a conversation in pieces. The messages of the assistant are learned, and so is the token that
  // ends each of them. Throws ValueError if `messages` do not fit the template or if none is of the assistant.
  std::vector<TextPiece> render(const std::vector<Message>& messages) const;
  // Returns a message of the user with the instruction and its input, and a message of the assistant with the output.
  // "alpaca" puts the input under a heading of its own, and the other templates put it after an empty line. An empty
  // input is left out.
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
  std::vector<uint8_t> learn;  // one entry per id: 1 if the id is a target; empty if all ids are targets
};

// Encodes `pieces` and fills `ids` and `learn`. If `starts` is true only in the first piece or in none, the ids are
// those of the joined text. Any other piece with `starts`, and the pieces after it, are encoded separately from the
// pieces before it. A token that lies in two pieces belongs to the later piece.
EncodedDocument encode_pieces(const std::vector<TextPiece>& pieces, const Tokenizer& tokenizer);

}  // namespace zeroshard
