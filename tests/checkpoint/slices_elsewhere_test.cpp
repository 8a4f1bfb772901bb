#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "comm/local_comm.h"
#include "file/support.h"
#include "support/elsewhere.h"

namespace zeroshard {
namespace {

constexpr int64_t kLargeNumel = 3 << 20;  // 12 MiB: several pieces

// Three neighbouring stretches of one tensor's data, the last of them with elements that are not saved before it.
SaveRequest large_request(const std::string& root, std::vector<float>& values) {
  const auto data = std::make_shared<testing::Elsewhere>(values);
  SaveRequest request;
  request.root = root;
  request.tag = std::string("a");
  const std::vector<Range> stretches = {{0, 1000}, {1000, kLargeNumel - 5000}, {kLargeNumel - 4000, kLargeNumel}};
  for (const Range& stretch : stretches) {
    StateSlice slice;
    slice.name = concat("x", stretch.begin);
    slice.kind = "weight";
    slice.dtype = "F32";
    slice.shape = {stretch.size()};
    slice.elements = {0, stretch.size()};
    slice.data = data;
    slice.offset = stretch.begin * int64_t(sizeof(float));
    request.slices.push_back(std::move(slice));
  }
  return request;
}

// What a checkpoint has of the values, and -1 where nothing was saved.
std::vector<float> loaded(const std::string& root, std::vector<float>& values) {
  std::vector<float> result(values.size(), -1);
  std::vector<StateSlice> slices = large_request(root, values).slices;
  for (StateSlice& slice : slices) slice.data = host_data(result.data());
  LoadRequest request;
  request.root = root;
  request.tag = std::string("a");
  request.wanted = [&](const Manifest&, const TensorIndex&) { return slices; };
  load_checkpoint(request, *make_single_comm(), posix_io());
  return result;
}

class SlicesElsewhere : public ::testing::Test {
 protected:
  SlicesElsewhere() : values_(size_t(kLargeNumel)) {
    std::iota(values_.begin(), values_.end(), 1.0F);
    expected_ = values_;
    std::fill(expected_.end() - 5000, expected_.end() - 4000, -1.0F);
  }

  const testing::TemporaryDirectory root_;
  std::vector<float> values_, expected_;
};

TEST_F(SlicesElsewhere, AreSavedPieceByPiece) {
  save_checkpoint(large_request(root_.path(), values_), *make_single_comm(), posix_io());
  EXPECT_TRUE(loaded(root_.path(), values_) == expected_);
}

// Neighbours are copied in one go, by the data itself, and may change afterwards.
TEST_F(SlicesElsewhere, AreCopiedForASaveInTheBackground) {
  const auto comm = make_single_comm();
  Ledger ledger;
  AsyncSaver saver(*comm, posix_io(), ledger);
  saver.start(large_request(root_.path(), values_),
              [](void*, const void*, int64_t) { FAIL() << "it is not on the host"; });
  std::fill(values_.begin(), values_.end(), 0.0F);
  saver.wait();
  EXPECT_TRUE(loaded(root_.path(), values_) == expected_);
}

}  // namespace
}  // namespace zeroshard
