#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/document_reader.h"
#include "zeroshard/tokenize.h"

namespace zeroshard {

// Turns a document that was read into ids. Any number of threads may call encode().
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const std::vector<std::string>& inputs, const TokenizeOptions& options);

  // Returns whether some tokens are not learned.
  bool masked() const { return template_.has_value(); }
  // Encodes a document. Returns no ids for a document without text, and sets `learn` only if masked(). Throws
  // ValueError with file, line and field.
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
