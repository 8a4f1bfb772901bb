#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Converts text to token ids and back, with the same results as Hugging Face's `tokenizers` and SentencePiece.
namespace zeroshard {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Encodes `text`, which should be UTF-8. Reads each maximal ill-formed part of it as one U+FFFD, as Unicode
  // recommends and Python's errors="replace" does. With `parse_special`, the names of special tokens in `text` become
  // those tokens. `add_special` adds the ids that the tokenizer puts around a sequence, such as <s>.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const = 0;
  // Returns the text of `ids`. The text contains the bytes of incomplete characters unchanged. `skip_special` leaves
  // out special tokens. Throws ValueError for an id outside the vocabulary.
  virtual std::string decode(const std::vector<int32_t>& ids, bool skip_special) const = 0;

  virtual int64_t vocab_size() const = 0;  // largest id + 1, including added tokens
  // id_of() returns nothing for an unknown token. token() throws ValueError for an id without a token.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  virtual const std::string& token(int32_t id) const = 0;

  // Return the ids of the tokens that begin and end a sequence, if the tokenizer has any. For a tokenizer.json, the
  // names of these tokens come from tokenizer_config.json or special_tokens_map.json in the same directory. A
  // SentencePiece model itself contains the names.
  const std::optional<int32_t>& bos() const { return bos_; }
  const std::optional<int32_t>& eos() const { return eos_; }
  // Returns 16 hexadecimal digits. If two tokenizers have the same digits, their encode() gives the same results.
  const std::string& digest() const { return digest_; }

 protected:
  std::optional<int32_t> bos_, eos_;
  std::string digest_;
};

// Loads a tokenizer. `path` is a tokenizer.json, a SentencePiece model (*.model), or a directory. In a directory, the
// first file that exists is taken: tokenizer.json, tokenizer.model, or the only other *.model. Throws an IoError or
// ValueError that names the file, and the field that is wrong or not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace zeroshard
