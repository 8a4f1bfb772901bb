#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "support/random.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

using testing::Random;
using testing::SeededRandom;
using testing::seeds;

using Ids = std::vector<int32_t>;
using Pairs = std::map<std::pair<int32_t, int32_t>, Merge>;

struct BpeModel {
  Pairs pairs;
  Bpe::Parts parts;
};

// Bytes a to `letters`, and merges of tokens drawn at random, some with equal ranks.
BpeModel random_model(Random& random, int letters, int merges) {
  BpeModel model;
  model.parts.byte_units = true;
  std::vector<std::string> tokens;
  for (int i = 0; i < letters; ++i) tokens.emplace_back(1, static_cast<char>('a' + i));
  for (int i = 0; i < merges; ++i) {
    const auto left = static_cast<int32_t>(random() % tokens.size());
    const auto right = static_cast<int32_t>(random() % tokens.size());
    const Merge merge{i + static_cast<int32_t>(random() % 2), static_cast<int32_t>(tokens.size())};
    if (!model.pairs.emplace(std::pair(left, right), merge).second) continue;
    model.parts.merges.insert(left, right, merge);
    tokens.push_back(tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)]);
  }
  for (size_t id = 0; id < tokens.size(); ++id) model.parts.tokens.insert(tokens[id], static_cast<int32_t>(id));
  for (int i = 0; i < letters; ++i) model.parts.tokens.insert(tokens[static_cast<size_t>(i)], i);
  return model;
}

// The definition: the lowest rank, leftmost first, until nothing can be joined.
Ids encode_slowly(const Pairs& pairs, const std::string& word) {
  Ids ids;
  for (const char c : word) ids.push_back(c - 'a');
  while (true) {
    const Merge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = pairs.find({ids[i], ids[i + 1]});
      if (found == pairs.end() || (best && best->rank <= found->second.rank)) continue;
      best = &found->second;
      place = i;
    }
    if (!best) return ids;
    ids[place] = best->id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  for (const uint64_t seed : seeds(60)) {
    SeededRandom random(seed);
    BpeModel model = random_model(random, 2 + static_cast<int>(random() % 4), static_cast<int>(random() % 40));
    const int letters = 2;
    const Bpe bpe(std::move(model.parts));
    Bpe::Scratch scratch;
    for (int round = 0; round < 60; ++round) {
      std::string word(random() % (round % 4 == 0 ? 300 : 40), 'a');
      for (char& c : word) c = static_cast<char>('a' + random() % letters);
      const Ids wanted = encode_slowly(model.pairs, word);
      for (const char* time : {"new", "cached"}) {
        Ids ids;
        bpe.encode(word, scratch, ids);
        EXPECT_EQ(ids, wanted) << word << " " << time;
      }
    }
  }
}

TEST(Bpe, ALongRunTakesNoQuadraticTime) {
  Bpe::Parts parts;
  parts.byte_units = true;
  for (int32_t id = 0, length = 1; id < 6; ++id, length *= 2) {
    parts.tokens.insert(std::string(static_cast<size_t>(length), 'a'), id);
    if (id > 0) parts.merges.insert(id - 1, id - 1, {id - 1, id});
  }
  const Bpe bpe(std::move(parts));
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode(std::string(1'000'003, 'a'), scratch, ids);  // 32 * 31250 + 2 + 1
  Ids wanted(31250, 5);
  wanted.insert(wanted.end(), {1, 0});
  EXPECT_EQ(ids, wanted);
}

TEST(WordCache, KeepsWhatFitsAndTellsWordsApart) {
  WordCache cache;
  const Ids ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  Ids out;
  // One place: another word with the same hash takes it.
  cache.put("abc", 7, ids.data(), 3);
  EXPECT_FALSE(cache.find("abd", 7, out));
  EXPECT_FALSE(cache.find("ab", 7, out));
  EXPECT_TRUE(cache.find("abc", 7, out));
  EXPECT_EQ(out, Ids({1, 2, 3}));
  cache.put("abd", 7, ids.data(), 0);
  EXPECT_FALSE(cache.find("abc", 7, out));
  EXPECT_TRUE(cache.find("abd", 7, out));
  EXPECT_EQ(out.size(), 3U);
  cache.put("nine ids", 8, ids.data(), 9);
  EXPECT_FALSE(cache.find("nine ids", 8, out));
  cache.put(std::string(WordCache::kMaxBytes + 1, 'x'), 9, ids.data(), 1);
  EXPECT_FALSE(cache.find(std::string(WordCache::kMaxBytes + 1, 'x'), 9, out));
}

TEST(MergeTable, FindsWhatWasInserted) {
  SeededRandom random(1);
  std::map<std::pair<int32_t, int32_t>, int32_t> wanted;
  MergeTable table(10);  // grows
  for (int32_t i = 0; i < 20000; ++i) {
    const std::pair<int32_t, int32_t> key(random() % 300, random() % 300);
    wanted[key] = i;
    table.insert(key.first, key.second, {i, -i});
  }
  EXPECT_EQ(table.size(), wanted.size());
  for (int32_t left = 0; left < 300; ++left)
    for (int32_t right = 0; right < 300; ++right) {
      const Merge* found = table.find(left, right);
      const auto it = wanted.find({left, right});
      ASSERT_EQ(found != nullptr, it != wanted.end());
      if (found) {
        ASSERT_EQ(found->rank, it->second);
      }
    }
}

}  // namespace
}  // namespace zeroshard
