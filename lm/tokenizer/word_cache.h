#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tables.h"

namespace zeroshard {

// Caches the ids of short words. The cache is direct-mapped. A word can be in only one entry, and replaces any other
// word there. The first word allocates 2 MiB, and the cache never grows.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 30, kMaxIds = 8;

  // Appends the ids of `word` to `out`. If the word is cached, takes them from the cache. Otherwise calls append_ids(),
  // which must append them, and encode() then copies them into the cache. Words of more than kMaxBytes are never
  // cached.
  template <typename AppendIds>
  void encode(std::string_view word, std::vector<int32_t>& out, const AppendIds& append_ids) {
    if (word.size() > kMaxBytes) return append_ids();
    const uint64_t hash = hash_text(word);
    if (find(word, hash, out)) return;
    const size_t before = out.size();
    append_ids();
    put(word, hash, out.data() + before, out.size() - before);
  }

  // Appends the ids of `word` and returns true if the word is cached, else returns false.
  bool find(std::string_view word, uint64_t hash, std::vector<int32_t>& out) const {
    if (entries_.empty()) return false;
    const Entry& entry = entries_[hash % kEntries];
    if (entry.bytes != word.size() || std::string_view(entry.text, entry.bytes) != word) return false;
    out.insert(out.end(), entry.ids, entry.ids + entry.count);
    return true;
  }
  // Caches the `count` ids of a word. Does nothing if the word is empty or has more than kMaxBytes, or if it has more
  // than kMaxIds ids.
  void put(std::string_view word, uint64_t hash, const int32_t* ids, size_t count);

 private:
  static constexpr size_t kEntries = size_t{1} << 15;
  struct alignas(64) Entry {
    uint8_t bytes = 0, count = 0;  // bytes 0: the entry is free
    char text[kMaxBytes] = {};
    int32_t ids[kMaxIds] = {};
  };
  std::vector<Entry> entries_;
};

}  // namespace zeroshard
