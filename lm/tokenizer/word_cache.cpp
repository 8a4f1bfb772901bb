#include "tokenizer/word_cache.h"

#include <algorithm>
#include <cstring>

namespace zeroshard {

void WordCache::put(std::string_view word, uint64_t hash, const int32_t* ids, size_t count) {
  if (word.empty() || word.size() > kMaxBytes || count > kMaxIds) return;
  if (entries_.empty()) entries_.resize(kEntries);
  Entry& entry = entries_[hash % kEntries];
  entry.bytes = static_cast<uint8_t>(word.size());
  entry.count = static_cast<uint8_t>(count);
  std::memcpy(entry.text, word.data(), word.size());
  std::copy_n(ids, count, entry.ids);
}

}  // namespace zeroshard
