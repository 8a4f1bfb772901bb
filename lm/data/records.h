#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/document_reader.h"
#include "zeroshard/tokenize.h"

namespace zeroshard {

// Turns documents into ids. Any number of threads may call encode(). The arguments of the constructor must live as long
// as the encoder.
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const std::vector<std::string>& inputs, const TokenizeOptions& options);

  // Returns whether documents can have tokens that are not learned. Only documents of the formats chat and instruct
  // can.
  bool masked() const { return template_.has_value(); }
  // Returns the ids of a document. A document without text has none. Sets `learn` only if masked(). Throws a ValueError
  // that names the file, the line and what is wrong.
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
