#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581
// Up to this number of symbols in a word, a linear search for the next merge is faster than a heap.
constexpr size_t kShortSymbols = 48;
constexpr uint32_t kNoNeighbour = UINT32_MAX;

// Returns the end of the part of `text` that begins at `begin`. The part ends before the next U+2581 that follows
// another character.
size_t end_of_part(std::string_view text, size_t begin) {
  bool after_space = true;  // so that a part can begin with one or more U+2581
  for (size_t at = begin; at < text.size(); at += utf8_length(text[at])) {
    const bool space = text.compare(at, kSpaceSymbol.size(), kSpaceSymbol) == 0;
    if (space && !after_space) return at;
    after_space = space;
  }
  return text.size();
}

}  // namespace

Bpe::Bpe(Parts parts) : parts_(std::move(parts)) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const char unit = static_cast<char>(static_cast<unsigned char>(byte));
    byte_ids_[byte] = byte < 0x80 || parts_.byte_units ? parts_.tokens.find({&unit, 1}) : -1;
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (!parts_.words_begin_at_space) return encode_part(word, scratch, out);
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = end_of_part(word, begin);
    encode_part(word.substr(begin, end - begin), scratch, out);
    begin = end;
  }
}

void Bpe::encode_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& out) const {
  scratch.cache.encode(part, out, [&] {
    const int32_t whole = parts_.ignore_merges ? parts_.tokens.find(part) : -1;
    if (whole >= 0) return out.push_back(whole);
    scratch.symbols.clear();
    cut_into_units(part, scratch.symbols);
    scratch.symbols.size() <= kShortSymbols ? merge_short(scratch) : merge_long(scratch);
    append_symbols(scratch.symbols, out);
  });
}

void Bpe::cut_into_units(std::string_view part, std::vector<int32_t>& symbols) const {
  const Unknown& unknown = parts_.unknown;
  bool pending = false;  // true: the id of an unknown character is still to be added
  for (size_t at = 0; at < part.size();) {
    const size_t bytes = parts_.byte_units ? 1 : std::min(utf8_length(part[at]), part.size() - at);
    const std::string_view unit = part.substr(at, bytes);
    at += bytes;
    const int32_t id = bytes == 1 ? byte_ids_[static_cast<unsigned char>(unit[0])] : parts_.tokens.find(unit);
    if (id >= 0) {
      if (std::exchange(pending, false)) symbols.push_back(unknown.id);
      symbols.push_back(id);
    } else if (!append_byte_ids(unknown.bytes, unit, symbols) && unknown.id >= 0) {
      if (pending && !unknown.fuse) symbols.push_back(unknown.id);
      pending = true;
    }
  }
  if (pending) symbols.push_back(unknown.id);
}

void Bpe::append_symbols(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  if (!parts_.unknown.after_merging) {
    out.insert(out.end(), symbols.begin(), symbols.end());
    return;
  }
  bool after_unknown = false;
  for (const int32_t symbol : symbols) {
    const bool extra = symbol >= parts_.first_extra;
    const auto text = [&] { return std::string_view(parts_.extra[static_cast<size_t>(symbol - parts_.first_extra)]); };
    if (extra && append_byte_ids(parts_.unknown.bytes, text(), out)) {
      after_unknown = false;
      continue;
    }
    const bool unknown = extra || symbol == parts_.unknown.id;
    if (!(unknown && after_unknown)) out.push_back(unknown ? parts_.unknown.id : symbol);
    after_unknown = unknown;
  }
}

void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<Merge>& pairs = scratch.pairs;
  pairs.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) pairs.push_back(pair(symbols[i], symbols[i + 1]));
  while (!pairs.empty()) {
    const auto by_rank = [](const Merge& a, const Merge& b) { return a.rank < b.rank; };
    const auto best = std::min_element(pairs.begin(), pairs.end(), by_rank);  // the leftmost of equal ones
    if (best->rank == kNoRank) break;
    const auto at = static_cast<size_t>(best - pairs.begin());
    symbols[at] = best->id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    pairs.erase(best);
    if (at > 0) pairs[at - 1] = pair(symbols[at - 1], symbols[at]);
    if (at < pairs.size()) pairs[at] = pair(symbols[at], symbols[at + 1]);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<Merge>& pairs = scratch.pairs;  // kNoRank for a symbol that was merged into another one
  std::vector<uint64_t>& heap = scratch.heap;
  const size_t count = symbols.size();
  ZS_CHECK(count < kNoNeighbour, "a text of ", count, " characters without a place to cut it is too long");
  scratch.previous.resize(count);
  scratch.next.resize(count);
  pairs.assign(count, Merge{kNoRank, 0});
  heap.clear();
  const auto entry = [&](size_t at) { return (uint64_t{static_cast<uint32_t>(pairs[at].rank)} << 32) | at; };
  for (size_t i = 0; i < count; ++i) {
    scratch.previous[i] = i == 0 ? kNoNeighbour : static_cast<uint32_t>(i - 1);
    scratch.next[i] = i + 1 == count ? kNoNeighbour : static_cast<uint32_t>(i + 1);
    if (i + 1 < count) pairs[i] = pair(symbols[i], symbols[i + 1]);
    if (pairs[i].rank != kNoRank) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto renew = [&](uint32_t at) {
    pairs[at] = scratch.next[at] == kNoNeighbour ? Merge{kNoRank, 0} : pair(symbols[at], symbols[scratch.next[at]]);
    if (pairs[at].rank == kNoRank) return;
    heap.push_back(entry(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<uint32_t>(heap.back());
    const auto rank = static_cast<int32_t>(heap.back() >> 32);
    heap.pop_back();
    if (pairs[at].rank != rank) continue;  // an old entry: one of its two symbols was merged since
    const uint32_t right = scratch.next[at], after = scratch.next[right];
    symbols[at] = pairs[at].id;
    symbols[right] = -1;
    pairs[right].rank = kNoRank;
    scratch.next[at] = after;
    if (after != kNoNeighbour) scratch.previous[after] = at;
    renew(at);
    if (scratch.previous[at] != kNoNeighbour) renew(scratch.previous[at]);
  }
  std::erase(symbols, -1);
}

}  // namespace zeroshard
