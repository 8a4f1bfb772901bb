#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Returns the 64-bit XXH3 hash of `text`.
uint64_t hash_text(std::string_view text);

// Maps byte strings to ids, which are not negative, with open addressing.
class StringTable {
 public:
  // `expected` is the probable number of insertions. More are possible.
  explicit StringTable(size_t expected = 0);

  void insert(std::string_view text, int32_t id);  // replaces the id of an equal text
  int32_t find(std::string_view text) const;       // -1: not found

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
    size_t begin = 0, bytes = 0;  // where the string is in text_
  };
  size_t slot_of(std::string_view text, uint32_t hash) const;
  void grow();

  std::vector<Slot> slots_;
  std::string text_;
  size_t count_ = 0;
};

struct Merge {
  int32_t rank = 0, id = 0;
};

// Maps two neighbouring symbols to the id and the rank of their merge. Lower ranks merge first.
class MergeTable {
 public:
  explicit MergeTable(size_t expected = 0);

  void insert(int32_t left, int32_t right, Merge merge);  // replaces an earlier merge of the same pair
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = place_of(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return &slots_[at].merge;
      if (slots_[at].key == kEmpty) return nullptr;
    }
  }
  size_t size() const { return count_; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // no pair of ids has this key, because ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }
  size_t place_of(uint64_t key) const { return ((key * 0x9E3779B97F4A7C15ULL) >> 20) & mask_; }
  void grow();

  std::vector<Slot> slots_;
  size_t mask_ = 0, count_ = 0;
};

// Maps byte strings to values, which are not negative. Finds the longest string that is a prefix of a text.
class PrefixTrie {
 public:
  struct Found {
    int32_t value = -1;
    size_t bytes = 0;
  };

  // Adds a string, which must not be empty. Returns false and changes nothing if the string exists already.
  bool insert(std::string_view text, int32_t value);
  std::optional<Found> longest(std::string_view text) const;
  // Returns the first position at or after `from` where one of the strings can begin, or text.size() if there is none.
  size_t candidate(std::string_view text, size_t from) const {
    while (from < text.size() && first_[static_cast<unsigned char>(text[from])] == 0) ++from;
    return from;
  }
  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    int32_t value = -1;
    std::vector<std::pair<char, uint32_t>> children;  // a node has few children, so a linear search is fast
  };
  uint32_t child(uint32_t node, char byte) const;  // 0: none

  std::vector<Node> nodes_;
  std::vector<uint32_t> first_ = std::vector<uint32_t>(256, 0);  // by byte: the child of the root; 0: none
};

}  // namespace zeroshard
