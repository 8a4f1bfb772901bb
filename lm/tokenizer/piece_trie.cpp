#include "tokenizer/piece_trie.h"

#include <algorithm>

#include "base/check.h"

namespace zeroshard {

// The range of a node. The sorted entries in [begin, end) are those that begin with the text of the node.
struct PieceTrie::Range {
  size_t begin = 0, end = 0;
};

PieceTrie::PieceTrie(std::vector<Entry> entries) {
  constexpr size_t kMaxBytes = size_t{1} << 26;  // in the worst case each byte takes a node and a label, 13 bytes
  size_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.first.size();
  ZS_CHECK(bytes <= kMaxBytes, "the vocabulary has ", bytes, " bytes of text: at most ", kMaxBytes, " are supported");
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.first < b.first; });
  nodes_.emplace_back();
  labels_.push_back(0);
  // Builds the trie level by level, so that the children of a node are next to each other.
  std::vector<Range> level{{0, entries.size()}}, below;
  uint32_t node = 0;
  for (size_t depth = 0; !level.empty(); ++depth) {
    below.clear();
    for (const Range& range : level) add_children(node++, range, depth, entries, below);
    level.swap(below);
  }
  const Node root = nodes_[0];
  for (uint32_t i = root.first_child; i < root.first_child + root.children; ++i)
    of_first_byte_[static_cast<unsigned char>(labels_[i])] = i;
}

void PieceTrie::add_children(uint32_t node, const Range& range, size_t depth, const std::vector<Entry>& entries,
                             std::vector<Range>& ranges) {
  size_t at = range.begin;
  for (; at < range.end && entries[at].first.size() == depth; ++at) nodes_[node].value = entries[at].second;
  const size_t first = nodes_.size();
  while (at < range.end) {
    const char byte = entries[at].first[depth];
    const size_t begin = at;
    while (at < range.end && entries[at].first[depth] == byte) ++at;
    ranges.push_back({begin, at});
    labels_.push_back(byte);
    nodes_.emplace_back();
  }
  nodes_[node].first_child = static_cast<uint32_t>(first);
  nodes_[node].children = static_cast<uint16_t>(nodes_.size() - first);
}

int32_t PieceTrie::find(std::string_view text) const {
  int32_t found = -1;
  each_prefix(text, [&](int32_t value, size_t bytes) {
    if (bytes == text.size()) found = value;
  });
  return found;
}

}  // namespace zeroshard
