#include "engine/uploads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/elsewhere.h"

namespace zeroshard {
namespace {

StateSlice slice_of(std::shared_ptr<SliceData> data, Range elements) {
  StateSlice slice;
  slice.dtype = "F32";
  slice.elements = elements;
  slice.data = std::move(data);
  slice.offset = elements.begin * int64_t(sizeof(float));
  return slice;
}

// A rank may keep nothing of a tensor: then there is no memory to point at.
TEST(Uploads, FillMemoryThatIsNotTheHosts) {
  Ledger ledger;
  std::vector<float> first(3, 0), second(100, 0), on_host(2, 0);
  Uploads uploads(ledger);
  for (int attempt = 0; attempt < 2; ++attempt) {  // as after a damaged checkpoint
    std::vector<StateSlice> slices = {
        slice_of(std::make_shared<testing::Elsewhere>(first), {0, 3}), slice_of(nullptr, {}),
        slice_of(std::make_shared<testing::Elsewhere>(second), {20, 90}), slice_of(host_data(on_host.data()), {0, 2})};
    uploads.stage(slices);
    EXPECT_GE(uploads.bytes(), 73 * 4);
    EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), uploads.bytes());
    EXPECT_EQ(slices[1].on_host(), nullptr);
    EXPECT_EQ(slices[3].on_host(), reinterpret_cast<std::byte*>(on_host.data()));
    for (const size_t i : {0, 2}) {
      ASSERT_NE(slices[i].on_host(), nullptr);
      std::vector<float> values(size_t(slices[i].elements.size()), float(i + 1));
      std::memcpy(slices[i].on_host(), values.data(), values.size() * sizeof(float));
    }
  }
  EXPECT_EQ(first[0], 0);
  uploads.finish();
  EXPECT_EQ(first, std::vector<float>(3, 1));
  std::vector<float> expected(100, 0);
  std::fill(expected.begin() + 20, expected.begin() + 90, 3.0F);
  EXPECT_EQ(second, expected);
  EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), 0);
}

}  // namespace
}  // namespace zeroshard
