#include "comm/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

TEST(CopyBytes, CopiesExactlyTheRangeAtAnyAlignment) {
  // Beyond the threshold of streaming stores: whole blocks of pages, some pages, lines and bytes.
  constexpr int64_t kLarge = (int64_t{4} << 20) + 5 * 4096 + 3 * 64 + 13;
  SeededRandom random(1);
  std::vector<unsigned char> source(kLarge + 64), target(kLarge + 256);
  for (auto& byte : source) byte = static_cast<unsigned char>(random());
  const auto sizes = {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{5000}, int64_t{4} << 20, kLarge - 5000, kLarge};
  for (const int64_t size : sizes)
    for (const auto& [to, from] : {std::pair(0, 0), std::pair(1, 3), std::pair(16, 5), std::pair(63, 64)}) {
      std::memset(target.data(), 0xee, target.size());
      copy_bytes(target.data() + to, source.data() + from, size);
      EXPECT_EQ(std::memcmp(target.data() + to, source.data() + from, static_cast<size_t>(size)), 0)
          << size << " " << to;
      for (int64_t i = 0; i < to; ++i) ASSERT_EQ(target[static_cast<size_t>(i)], 0xee);
      for (size_t i = static_cast<size_t>(to + size); i < target.size(); ++i) ASSERT_EQ(target[i], 0xee);
    }
}

}  // namespace
}  // namespace zeroshard
