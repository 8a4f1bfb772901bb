#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_token.h"
#include "tokenizer/tables.h"
#include "tokenizer/word_cache.h"

namespace zeroshard {

// Encodes words by byte-pair encoding. Merges the units of a word (bytes or characters) pair by pair. The pair with the
// lowest rank merges first, and of pairs with equal rank the leftmost merges first. Immutable. Any number of threads
// may encode, each with a Scratch of its own.
class Bpe {
 public:
  struct Scratch {
    WordCache cache;
    std::vector<int32_t> symbols;
    std::vector<Merge> pairs;              // by symbol: the merge with its right neighbour
    std::vector<uint32_t> previous, next;  // by symbol: its neighbours; only for long words
    std::vector<uint64_t> heap;            // rank << 32 | index of the left symbol
  };
  // Says how a character that is not a token is encoded.
  struct Unknown {
    int32_t id = -1;                // id of the character; -1: the character is left out
    bool fuse = false;              // true: a run of such characters gives one id
    bool after_merging = false;     // true: characters of Parts::extra that did not merge are unknown, too
    ByteIds bytes = no_byte_ids();  // if all bytes of the character have ids here, these replace `id`
  };
  struct Parts {
    StringTable tokens;  // ids by the tokens' text
    MergeTable merges;
    bool byte_units = false;     // true: units are bytes; false: characters of well-formed UTF-8
    bool ignore_merges = false;  // true: a word that is itself a token becomes that token
    // true: no merge joins a U+2581 to another character directly before it. So encode() may cut the text into parts at
    // each such place.
    bool words_begin_at_space = false;
    Unknown unknown;
    // `extra` has characters that are no tokens themselves, but merge into tokens. While encode() merges, extra[i] has
    // the id first_extra + i.
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
