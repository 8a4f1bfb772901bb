#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/document_reader.h"
#include "zeroshard/tokenize.h"

namespace zeroshard {

// Turns a document as read into ids. Safe for concurrent calls of encode().
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const std::vector<std::string>& inputs, const TokenizeOptions& options);

  // Whether some tokens are not learned.
  bool masked() const { return template_.has_value(); }
  // No ids for a document without text; `learn` only if masked(). Throws ValueError with file, line and field.
  EncodedDocument encode(const RawDocument& document) const;

 private:
  EncodedDocument encode_text(std::string_view text) const;
  EncodedDocument encode_json(const RawDocument& document) const;

  const Tokenizer& tokenizer_;
  const std::vector<std::string>& inputs_;
  const TokenizeOptions& options_;
  std::optional<ChatTemplate> template_;
};

}  // namespace zeroshard
