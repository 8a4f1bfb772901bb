#include "reduce/gradient_exit.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "accelerator/support.h"

namespace zeroshard::accelerator {
namespace {

// The next sum in a buffer waits for the copy that left that buffer. The copy of a later bucket may have to wait for a
// stream that is far behind.
TEST(GradientExit, ASumDoesNotWaitForTheCopyOfALaterBucket) {
  begin_on_devices(Schedule::kEager, /*seed=*/0);
  {
    Streams& streams = Streams::get();
    Ledger ledger;
    const int64_t numel = 1024;
    GradientExit exit(device(0), RingClass{numel * 4, /*slots=*/2, /*units=*/3}, ledger);
    std::vector<at::Tensor> host;
    std::vector<Array> arrays;
    for (size_t bucket = 0; bucket < 3; ++bucket) {
      ASSERT_EQ(exit.add_bucket(), bucket);
      host.push_back(at::empty({numel}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true)));
      arrays.emplace_back(host.back());
    }
    const auto leave = [&](size_t bucket) {
      exit.begin(arrays[bucket], /*has_values=*/false).fill_(double(bucket + 1));
      exit.end(arrays[bucket], bucket);
    };
    leave(0);
    const StreamKey behind = streams.make_stream(0);
    streams.hold(behind);
    {
      const c10::StreamGuard guard(to_stream(behind));
      leave(1);
    }
    exit.begin(arrays[2], /*has_values=*/false).fill_(3.0);
    const Mark mark = streams.record(current_stream(0));
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!streams.is_done(mark) && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_TRUE(streams.is_done(mark));
    streams.release(behind);
    exit.end(arrays[2], 2);
    streams.wait_for_device(0);
    for (size_t bucket = 0; bucket < 3; ++bucket)
      EXPECT_TRUE(host[bucket].eq(double(bucket + 1)).all().item<bool>()) << bucket;
    EXPECT_EQ(exit.squares({true, true, true}).value(), double(numel * (1 + 4 + 9)));
  }
  end_on_devices();
}

}  // namespace
}  // namespace zeroshard::accelerator
