#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_token.h"
#include "tokenizer/piece_trie.h"
#include "tokenizer/word_cache.h"

namespace zeroshard {

// Cuts text into the pieces whose scores have the highest sum (Kudo 2018, arXiv:1804.10959). Of equal sums, the path
// whose last piece begins first. Immutable; any number of threads may encode, each with a Scratch of its own.
class Unigram {
 public:
  // The libraries differ in rounding, which decides between sums that are nearly equal, and in unknown characters.
  enum class Flavor {
    kSentencePiece,  // sums are floats; each unknown character becomes bytes, or part of one unknown id
    kHuggingFace,    // sums are doubles; a run of unknown characters may be a token, or becomes bytes as a whole
  };
  struct Piece {
    std::string text;  // of at most kMaxPieceBytes
    double score = 0;
  };
  struct Parts {
    std::vector<Piece> pieces;      // by id; those that text is not made of have no text
    double unknown_score = 0;       // of a character that is no piece
    int32_t unknown_id = -1;        // -1: such a character is an error
    ByteIds bytes = no_byte_ids();  // what becomes of unknown characters first
    bool byte_units = false;        // characters are bytes, else those of well-formed UTF-8
    Flavor flavor = Flavor::kHuggingFace;
  };
  // The end of a piece, and the best path that ends there.
  struct Node {
    double score = 0;
    int32_t id = -1;
    uint32_t bytes = 0;  // of the path's last piece; 0: no path
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
  // Each character of a text is the beginning of pieces up to so long: a limit of the time it takes.
  static constexpr size_t kMaxPieceBytes = 1024;
  static constexpr double kUnknownPenalty = 10;  // an unknown character is so much worse than the worst piece

  explicit Unigram(Parts parts);

  // Appends the ids of `word`. Throws ValueError for a character that is unknown when there is no id for it.
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
