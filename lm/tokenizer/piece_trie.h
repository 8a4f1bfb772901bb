#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace zeroshard {

// Maps byte strings to values, and finds the strings that are prefixes of a text. The constructor sorts the strings,
// and then builds the whole trie in time linear in their bytes. The children of a node are next to each other in
// nodes_.
class PieceTrie {
 public:
  using Entry = std::pair<std::string_view, int32_t>;  // a string and its value, which is not negative

  // If entries have equal strings, the last one counts. Empty strings are skipped. Throws ValueError if the strings
  // have more than 64 MiB together.
  explicit PieceTrie(std::vector<Entry> entries);

  // Calls visit(value, bytes) for each string that is a prefix of `text`, the shortest first.
  template <typename Visit>
  void each_prefix(std::string_view text, const Visit& visit) const {
    if (text.empty()) return;
    uint32_t node = of_first_byte_[static_cast<unsigned char>(text[0])];
    for (size_t bytes = 1; node != kNone; ++bytes) {
      if (nodes_[node].value >= 0) visit(nodes_[node].value, bytes);
      if (bytes == text.size()) return;
      node = child(node, text[bytes]);
    }
  }
  int32_t find(std::string_view text) const;  // -1: not found

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t value = -1;
    uint16_t children = 0;
  };
  static constexpr uint32_t kNone = 0;  // the root, which is never a child

  uint32_t child(uint32_t node, char byte) const {
    const Node& from = nodes_[node];
    const char* labels = labels_.data() + from.first_child;
    if (from.children == 1) return *labels == byte ? from.first_child : kNone;
    const void* found = std::memchr(labels, byte, from.children);
    return found ? from.first_child + static_cast<uint32_t>(static_cast<const char*>(found) - labels) : kNone;
  }
  struct Range;
  void add_children(uint32_t node, const Range& range, size_t depth, const std::vector<Entry>& entries,
                    std::vector<Range>& ranges);

  std::vector<Node> nodes_;
  std::vector<char> labels_;  // by node: the byte that leads to the node
  std::array<uint32_t, 256> of_first_byte_{};
};

}  // namespace zeroshard
