#include "engine/uploads.h"

#include <gtest/gtest.h>

#include <cstring>

namespace zeroshard {
namespace {

StateSlice slice_of(std::vector<float>& values, bool on_host) {
  StateSlice slice;
  slice.dtype = "F32";
  slice.elements = {0, int64_t(values.size())};
  slice.data = values.empty() ? nullptr : values.data();
  slice.on_host = on_host;
  return slice;
}

// The CPU stands for a device. A rank may keep nothing of a tensor: then there is no memory to point at.
TEST(Uploads, FillMemoryThatIsNotTheHosts) {
  Ledger ledger;
  std::vector<float> first(3, 0), none, second(100, 0), on_host(2, 0);
  Uploads uploads(at::kCPU, ledger);
  for (int attempt = 0; attempt < 2; ++attempt) {  // as after a damaged checkpoint
    std::vector<StateSlice> slices = {slice_of(first, false), slice_of(none, false), slice_of(second, false),
                                      slice_of(on_host, true)};
    uploads.stage(slices);
    EXPECT_GE(uploads.bytes(), 103 * 4);
    EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), uploads.bytes());
    EXPECT_NE(slices[0].data, first.data());
    EXPECT_NE(slices[2].data, second.data());
    EXPECT_EQ(slices[3].data, on_host.data());
    for (const size_t i : {0, 2}) {
      std::vector<float> values(size_t(slices[i].elements.size()), float(i + 1));
      std::memcpy(slices[i].data, values.data(), values.size() * sizeof(float));
    }
  }
  EXPECT_EQ(first[0], 0);
  uploads.finish();
  EXPECT_EQ(first, std::vector<float>(3, 1));
  EXPECT_EQ(second, std::vector<float>(100, 3));
  EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), 0);
}

}  // namespace
}  // namespace zeroshard
