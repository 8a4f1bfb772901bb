#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_token.h"
#include "tokenizer/piece_trie.h"
#include "tokenizer/word_cache.h"

namespace zeroshard {

// Cuts text into the pieces with the highest sum of scores (Kudo 2018, arXiv:1804.10959). If two ways to cut the text
// have equal sums, the one whose last piece begins first wins. Immutable. Any number of threads may encode, each with a
// Scratch of its own.
class Unigram {
 public:
  // The library whose results encode() reproduces. SentencePiece and Hugging Face differ in their rounding, which
  // decides between nearly equal sums, and in how they encode unknown characters.
  enum class Flavor {
    kSentencePiece,  // sums are floats; a run of unknown characters becomes bytes, or one unknown id
    kHuggingFace,    // sums are doubles; such a run becomes the token with its text, else bytes, else one unknown id
  };
  struct Piece {
    std::string text;  // at most kMaxPieceBytes long
    double score = 0;
  };
  struct Parts {
    std::vector<Piece> pieces;      // by id; pieces that are not text have an empty text
    double unknown_score = 0;       // score of a character that is not a piece
    int32_t unknown_id = -1;        // id of such a character; -1: encode() throws for it
    ByteIds bytes = no_byte_ids();  // ids of bytes; used instead of unknown_id for a run whose bytes all have ids
    bool byte_units = false;        // true: characters are bytes; false: characters of well-formed UTF-8
    Flavor flavor = Flavor::kHuggingFace;
  };
  // A path to a position is a way to cut the text before that position into pieces. A node has the best path to its
  // position.
  struct Node {
    double score = 0;
    int32_t id = -1;
    uint32_t bytes = 0;  // length of the path's last piece, whose id is `id`; 0: no path
  };
  struct Step {
    size_t begin = 0;
    int32_t id = -1;
  };
  struct Scratch {
    WordCache cache;
    std::vector<Node> nodes;
    std::vector<Step> path;
  };
  // The largest length of a piece. It limits the time that encoding takes.
  static constexpr size_t kMaxPieceBytes = 1024;
  static constexpr double kUnknownPenalty = 10;  // an unknown character scores this much below the worst piece

  explicit Unigram(Parts parts);

  // Appends the ids of `word`. Throws ValueError for an unknown character if the model has no id for it.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  class Run;
  void append_unknown(std::string_view text, std::vector<int32_t>& out) const;

  std::vector<double> scores_;
  double unknown_score_;
  int32_t unknown_id_;
  ByteIds bytes_;
  bool byte_units_;
  Flavor flavor_;
  PieceTrie trie_;
};

}  // namespace zeroshard
