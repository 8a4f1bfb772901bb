#include "tokenizer/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

constexpr size_t kNoUnknown = std::numeric_limits<size_t>::max();
constexpr double kMaxScore = 100000;            // SentencePiece limits its float sums to this
constexpr size_t kKeptNodes = size_t{1} << 20;  // a Scratch keeps up to 16 MiB of nodes between texts

std::vector<PieceTrie::Entry> entries_of(const std::vector<Unigram::Piece>& pieces) {
  std::vector<PieceTrie::Entry> entries;
  entries.reserve(pieces.size());
  for (size_t id = 0; id < pieces.size(); ++id) {
    ZS_CHECK(pieces[id].text.size() <= Unigram::kMaxPieceBytes, "a piece has ", pieces[id].text.size(),
             " bytes: at most ", Unigram::kMaxPieceBytes, " are supported");
    if (!pieces[id].text.empty()) entries.emplace_back(pieces[id].text, static_cast<int32_t>(id));
  }
  return entries;
}

std::vector<double> scores_of(const std::vector<Unigram::Piece>& pieces) {
  std::vector<double> scores;
  scores.reserve(pieces.size());
  for (const Unigram::Piece& piece : pieces) scores.push_back(piece.score);
  return scores;
}

}  // namespace

Unigram::Unigram(Parts parts)
    : scores_(scores_of(parts.pieces)),
      unknown_score_(parts.unknown_score),
      unknown_id_(parts.unknown_id),
      bytes_(parts.bytes),
      byte_units_(parts.byte_units),
      flavor_(parts.flavor),
      trie_(entries_of(parts.pieces)) {}

// Encodes a text from left to right. Some positions lie inside no piece that matches the text around them. All paths
// meet at such a position, so the ids before it are final. They are then appended, and the nodes before that position
// are freed. So ordinary text needs nodes for only a few words at a time.
class Unigram::Run {
 public:
  Run(const Unigram& model, std::string_view text, Scratch& scratch, std::vector<int32_t>& out)
      : model_(model), text_(text), nodes_(scratch.nodes), path_(scratch.path), out_(out) {}

  void run() {
    nodes_.assign(1, Node{});
    for (size_t at = 0; at < text_.size();) {
      if (at == begin_ + nodes_.size() - 1) settle();
      at += extend(at);
    }
    settle();
    append_unknown_until(text_.size());
  }

 private:
  // Extends the best path to `at` by every piece that begins there. If none of these pieces is just the character at
  // `at`, extends the path by this character as an unknown one, too. Returns the length of the character.
  size_t extend(size_t at) {
    if (is_single() && std::abs(nodes_[at - begin_].score) > kMaxScore) rebase(at);
    const std::string_view rest = text_.substr(at);
    const size_t character = model_.byte_units_ ? 1 : std::min(utf8_length(rest[0]), rest.size());
    const double score = nodes_[at - begin_].score;
    bool has_character = false;
    model_.trie_.each_prefix(rest, [&](int32_t id, size_t bytes) {
      offer(at, bytes, score + model_.scores_[static_cast<size_t>(id)], id);
      has_character |= bytes == character;
    });
    if (has_character) return character;
    const bool taken = offer(at, character, score + model_.unknown_score_, model_.unknown_id_);
    ZS_CHECK(!taken || model_.unknown_id_ >= 0, "the text has '", rest.substr(0, character),
             "', for which the vocabulary has no token, and the model has no unknown token");
    return character;
  }

  bool is_single() const { return model_.flavor_ == Flavor::kSentencePiece; }

  // Offers a new path, whose last piece begins at `at` and has `bytes` bytes. The new path becomes the best path to the
  // end of this piece if there is none yet, or if its score is higher. Returns false if the old path stays.
  bool offer(size_t at, size_t bytes, double score, int32_t id) {
    if (is_single()) score = static_cast<float>(score);  // rounding the double sum of two floats gives their float sum
    const size_t end = at + bytes - begin_;
    if (end >= nodes_.size()) nodes_.resize(end + 1);
    Node& node = nodes_[end];
    if (node.bytes != 0 && !(score > node.score)) return false;
    node = {score, id, static_cast<uint32_t>(bytes)};
    return true;
  }

  // Subtracts the score at `at` from the scores from `at` on, so that floats stay precise.
  void rebase(size_t at) {
    const double offset = nodes_[at - begin_].score;
    for (size_t i = at - begin_; i < nodes_.size(); ++i) nodes_[i].score = static_cast<float>(nodes_[i].score - offset);
  }

  // Appends the ids of the best path to the last node. Does not yet append unknown characters at the end of the path,
  // because more of them can follow. Frees the other nodes, so that the last node becomes the first one.
  void settle() {
    const Node last = nodes_.back();
    path_.clear();
    for (size_t end = nodes_.size() - 1; end > 0; end -= nodes_[end].bytes)
      path_.push_back({begin_ + end - nodes_[end].bytes, nodes_[end].id});
    for (auto step = path_.rbegin(); step != path_.rend(); ++step) append(*step);
    begin_ += nodes_.size() - 1;
    nodes_.assign(1, Node{last.score});
  }

  void append(const Step& step) {
    if (step.id == model_.unknown_id_) {
      unknown_ = std::min(unknown_, step.begin);
    } else {
      append_unknown_until(step.begin);
      out_.push_back(step.id);
    }
  }

  void append_unknown_until(size_t end) {
    if (unknown_ == kNoUnknown) return;
    const size_t begin = std::exchange(unknown_, kNoUnknown);
    model_.append_unknown(text_.substr(begin, end - begin), out_);
  }

  const Unigram& model_;
  std::string_view text_;
  std::vector<Node>& nodes_;  // by position from begin_ to the furthest end of a piece
  std::vector<Step>& path_;
  std::vector<int32_t>& out_;
  size_t begin_ = 0;
  size_t unknown_ = kNoUnknown;  // start of a run of unknown characters whose ids are not appended yet
};

void Unigram::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  scratch.cache.encode(word, out, [&] { Run(*this, word, scratch, out).run(); });
  if (scratch.nodes.capacity() > kKeptNodes) scratch.nodes = std::vector<Node>();
  if (scratch.path.capacity() > kKeptNodes) scratch.path = std::vector<Step>();
}

void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& out) const {
  const int32_t whole = flavor_ == Flavor::kHuggingFace ? trie_.find(text) : -1;
  if (whole >= 0) {
    out.push_back(whole);
  } else if (!append_byte_ids(bytes_, text, out)) {
    out.push_back(unknown_id_);
  }
}

}  // namespace zeroshard
