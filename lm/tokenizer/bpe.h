#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_token.h"
#include "tokenizer/tables.h"
#include "tokenizer/word_cache.h"

namespace zeroshard {

// Encodes words by byte-pair encoding. The units of a word (bytes or characters) are merged pair by pair, the lowest
// rank first, and the leftmost first among equal ranks. Immutable. Any number of threads may encode, each with its own
// Scratch.
class Bpe {
 public:
  struct Scratch {
    WordCache cache;
    std::vector<int32_t> symbols;
    std::vector<Merge> pairs;              // merges of each symbol with its right neighbour
    std::vector<uint32_t> previous, next;  // used for long words
    std::vector<uint64_t> heap;            // rank << 32 | place
  };
  // Says how a character that is not a token is encoded.
  struct Unknown {
    int32_t id = -1;                // -1: it is left out
    bool fuse = false;              // a run of such characters gives one id
    bool after_merging = false;     // true for SentencePiece; Hugging Face decides before merging
    ByteIds bytes = no_byte_ids();  // tried first: the tokens for the character's bytes
  };
  struct Parts {
    StringTable tokens;  // ids by the tokens' text
    MergeTable merges;
    bool byte_units = false;     // false: units are characters of well-formed UTF-8
    bool ignore_merges = false;  // a word that is itself a token becomes that token
    // true: no merge puts U+2581 after a different character, so text may be cut into words before each U+2581.
    bool words_begin_at_space = false;
    Unknown unknown;
    // Ids from first_extra on belong to characters that are no tokens, but merge into tokens.
    int32_t first_extra = INT32_MAX;
    std::vector<std::string> extra;
  };
  static constexpr int32_t kNoRank = INT32_MAX;

  explicit Bpe(Parts parts);

  // Appends the ids of `word`.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  int32_t id_of(std::string_view text) const { return parts_.tokens.find(text); }

 private:
  void encode_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& out) const;
  void cut_into_units(std::string_view part, std::vector<int32_t>& symbols) const;
  void append_symbols(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;
  Merge pair(int32_t left, int32_t right) const {
    const Merge* merge = parts_.merges.find(left, right);
    return merge ? *merge : Merge{kNoRank, 0};
  }
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  Parts parts_;
  ByteIds byte_ids_;  // ids of one-byte units
};

}  // namespace zeroshard
