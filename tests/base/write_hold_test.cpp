#include "base/write_hold.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>

namespace zeroshard {
namespace {

TEST(WriteHold, AWriterWaitsForEveryReader) {
  std::atomic<int> looks = 0;
  WriteHold hold([&] { ++looks; });
  hold.await_readers();  // there are none
  EXPECT_EQ(looks, 0);
  for (int time = 0; time < 2; ++time) {
    WriteHold::Reading first = hold.read(), second = hold.read();
    std::atomic<bool> read = false;
    std::thread writer([&] {
      hold.await_readers();
      EXPECT_TRUE(read);
    });
    first.reset();
    first.reset();
    const int before = looks;
    while (looks < before + 2) std::this_thread::yield();  // it still waits, and looks around
    read = true;
    std::thread([held = std::move(second)] {}).join();  // it ends on another thread
    writer.join();
  }
}

TEST(WriteHold, AnExceptionEndsTheWaitAndNothingElse) {
  WriteHold hold([] { throw std::runtime_error("enough"); });
  WriteHold::Reading reading = hold.read();
  for (int again = 0; again < 2; ++again) EXPECT_THROW(hold.await_readers(), std::runtime_error);
  reading.reset();
  hold.await_readers();
}

}  // namespace
}  // namespace zeroshard
