#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "base/interrupt.h"
#include "comm/local_comm.h"
#include "comm/wait_graph.h"
#include "support/comm_world.h"
#include "support/expect.h"

namespace zeroshard {
namespace {

using testing::expect_contains;

// The thread that a signal is for, and how often the check has run there.
thread_local bool is_interrupted = false;
std::atomic<int> looks{0};

class Interrupt : public ::testing::Test {
 protected:
  Interrupt() {
    looks = 0;
    set_interrupt_check([] {
      if (!is_interrupted) return;
      EXPECT_TRUE(in_interrupt_check());
      if (++looks == 3) throw std::runtime_error("Ctrl-C");
    });
  }
  ~Interrupt() override { set_interrupt_check(nullptr); }
};

TEST_F(Interrupt, EndsAWaitAndIsToldToAllRanks) {
  CommOptions options;
  options.wait_graph = std::make_shared<WaitGraph>();
  auto first = make_local_world(3, options), second = make_local_world(3, options);
  std::atomic<bool> is_over{false};
  const auto errors = testing::run_threads(3, [&](int rank) {
    Comm &here = *first[size_t(rank)], &there = *second[size_t(rank)];
    here.barrier("start");
    is_interrupted = rank == 0;
    if (rank == 2) {
      while (!is_over) std::this_thread::yield();
      there.barrier("in the other communicator");
    }
    try {
      here.barrier("model.layers.3");  // rank 2 never comes
    } catch (const std::exception&) {
      is_over = true;
      throw;
    }
  });
  EXPECT_EQ(errors[0], "Ctrl-C");
  for (const size_t rank : {1u, 2u})
    expect_contains(errors[rank], {"rank 0 was interrupted", "collective #2 barrier('model.layers.3'"});
  EXPECT_FALSE(in_interrupt_check());
}

TEST_F(Interrupt, IsNotLookedForWhereNobodyWaits) {
  const auto errors = testing::run_local_world(1, [](Comm& comm) {
    is_interrupted = true;
    for (int i = 0; i < 10; ++i) comm.barrier("alone");
    is_interrupted = false;
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(looks, 0);
}

}  // namespace
}  // namespace zeroshard
