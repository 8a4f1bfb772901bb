#include "checkpoint/uploads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "support/elsewhere.h"

namespace zeroshard {
namespace {

constexpr int64_t kChunk = 256, kFloat = sizeof(float);

void send(Uploads& uploads, const std::shared_ptr<SliceData>& to, int64_t begin, const std::vector<float>& values) {
  const auto bytes = int64_t(values.size()) * kFloat;
  std::memcpy(uploads.place(bytes), values.data(), size_t(bytes));
  uploads.send(to, begin * kFloat, bytes);
}

TEST(Uploads, FillMemoryThatIsNotTheHosts) {
  Ledger ledger;
  std::vector<float> first(3, 0), second(100, 0);
  const auto to_first = std::make_shared<testing::Elsewhere>(first),
             to_second = std::make_shared<testing::Elsewhere>(second);
  {
    Uploads uploads(ledger, nullptr, kChunk);
    EXPECT_EQ(ledger.current().total(), 0);  // nothing is uploaded yet
    send(uploads, to_first, 0, {1, 2, 3});
    for (int64_t begin = 20; begin < 90; begin += 10) {
      std::vector<float> values(10);
      std::iota(values.begin(), values.end(), float(begin));
      send(uploads, to_second, begin, values);
    }
    uploads.finish();
    EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), 2 * kChunk);
  }
  EXPECT_EQ(ledger.current().total(), 0);
  EXPECT_EQ(first, (std::vector<float>{1, 2, 3}));
  std::vector<float> expected(100, 0);
  std::iota(expected.begin() + 20, expected.begin() + 90, 20.0F);
  EXPECT_EQ(second, expected);
}

// Counts the waits for copies, which it makes at once.
class CountedCopies final : public DeviceCopies {
 public:
  std::shared_ptr<std::byte> host_memory(int64_t bytes) override {
    return {new std::byte[size_t(bytes)], std::default_delete<std::byte[]>()};
  }
  void in_order(const std::function<void()>& begin, Order) override { begin(); }
  Wait mark() override {
    ++marks;
    return [this] { ++waits; };
  }

  int marks = 0, waits = 0;
};

// A chunk is filled again when what was in it has been copied, and nothing is copied any more when its memory goes.
TEST(Uploads, WaitForEveryCopyFromTheirMemory) {
  Ledger ledger;
  std::vector<float> values(1000, 0);
  const auto to = std::make_shared<testing::Elsewhere>(values);
  CountedCopies copies;
  {
    Uploads uploads(ledger, &copies, kChunk);
    for (int64_t i = 0; i < 5; ++i) {
      send(uploads, to, i * 64, std::vector<float>(64, float(i)));
      EXPECT_EQ(copies.marks, i);
      EXPECT_EQ(copies.waits, std::max<int64_t>(0, i - 1));
    }
    uploads.finish();
    EXPECT_EQ(copies.marks, 5);
  }
  EXPECT_EQ(copies.waits, 5);
  EXPECT_EQ(values[4 * 64], 4);
}

}  // namespace
}  // namespace zeroshard
