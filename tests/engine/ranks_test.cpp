#include "engine/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/interrupt.h"
#include "comm/local_comm.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Two ranks of one process.
struct TwoRanks {
  Ranks of(size_t rank) { return {*gather[rank], *reduce[rank], nullptr, {}, at::kCPU}; }

  std::vector<std::unique_ptr<Comm>> gather = make_local_world(2), reduce = make_local_world(2);
};

void interrupt() {
  throw std::runtime_error("interrupted");
}

TEST(Ranks, AnInterruptedWaitFailsTheOtherRanks) {
  TwoRanks world;
  const Ranks interrupted = world.of(0), other = world.of(1);
  other.check_while_waiting("it waited for a save");
  set_interrupt_check(interrupt);
  EXPECT_THROW(interrupted.check_while_waiting("it waited for a save"), std::runtime_error);
  set_interrupt_check(nullptr);
  const auto text = HasSubstr("rank 0 was interrupted while it waited for a save");
  EXPECT_THAT([&] { other.check_while_waiting("it waited"); }, ThrowsMessage<CommError>(text));
  EXPECT_THAT([&] { other.gather.barrier("next gather"); }, ThrowsMessage<CommError>(text));
}

TEST(Ranks, WithoutACommunicatorForCheckpointsNothingIsSaved) {
  TwoRanks world;
  EXPECT_THROW(world.of(0).checkpoint(), StateError);
}

TEST(Ranks, AHandlerOfASignalMayNotCallTheEngineWhileItWaits) {
  TwoRanks world;
  static const Ranks* ranks = nullptr;
  const Ranks own = world.of(0);
  ranks = &own;
  own.check_caller();
  set_interrupt_check([] { ranks->check_caller(); });
  EXPECT_THROW(own.check_while_waiting("it waited"), StateError);
  set_interrupt_check(nullptr);
}

}  // namespace
}  // namespace zeroshard
