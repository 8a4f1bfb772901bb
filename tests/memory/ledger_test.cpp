#include "memory/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/out_of_memory.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

TEST(Ledger, ReservesUpToTheLimitOfATier) {
  Ledger ledger;
  ledger.set_limits({{{Tier::kDevice}, 100, "a key"}});
  const Reservation held(ledger, Category::kParameters, Tier::kDevice, 70);
  ledger.reserve(Category::kMoments, Tier::kHost, 1000);  // another tier
  EXPECT_TRUE(ledger.has_room(Tier::kDevice, 30));
  EXPECT_FALSE(ledger.has_room(Tier::kDevice, 31));
  const Bytes before = ledger.current(), peak = ledger.peak();
  try {
    const Reservation more(ledger, Category::kGatherRing, Tier::kDevice, 31);
    FAIL() << "the limit was passed";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("31 bytes of gather ring: 70 are held, and the limit is 100 (a key)"));
  }
  EXPECT_EQ(ledger.current(), before);
  EXPECT_EQ(ledger.peak(), peak);
  EXPECT_NO_THROW(Reservation(ledger, Category::kGatherRing, Tier::kDevice, 30));
}

TEST(Ledger, ALimitMayCountTiersTogether) {
  Ledger ledger;
  ledger.set_limits({{{Tier::kDevice, Tier::kHost}, 100, "a key"}});
  ledger.reserve(Category::kParameters, Tier::kDevice, 60);
  EXPECT_THROW(ledger.reserve(Category::kCheckpointStaging, Tier::kHost, 41), OutOfMemory);
  EXPECT_NO_THROW(ledger.reserve(Category::kCheckpointStaging, Tier::kHost, 40));
  EXPECT_THROW(ledger.reserve(Category::kParameters, Tier::kDevice, 1), OutOfMemory);
  EXPECT_NO_THROW(ledger.reserve(Category::kMoments, Tier::kFile, 1000));
  EXPECT_NO_THROW(ledger.reserve(Category::kMoments, Tier::kDevice, 0));
}

TEST(Ledger, WhatIsThereIsCountedWhateverTheLimit) {
  Ledger ledger;
  ledger.set_limits({{{Tier::kDevice}, 10, "a key"}});
  ledger.add(Category::kTemporaries, Tier::kDevice, 20);
  EXPECT_FALSE(ledger.has_room(Tier::kDevice, 1));
  ledger.remove(Category::kTemporaries, Tier::kDevice, 20);
  EXPECT_TRUE(ledger.has_room(Tier::kDevice, 10));
}

TEST(Reservation, BelongsToOneOwner) {
  Ledger ledger;
  {
    Reservation first(ledger, Category::kMoments, Tier::kHost, 5), second;
    second = std::move(first);
    EXPECT_FALSE(first);  // NOLINT: what is moved from holds nothing
    EXPECT_EQ(ledger.current().total(), 5);
    second = Reservation(ledger, Category::kMoments, Tier::kHost, 7);
    EXPECT_EQ(ledger.current().total(), 7);
    second.release();
    second.release();
    EXPECT_EQ(ledger.current().total(), 0);
    first = Reservation(ledger, Category::kMoments, Tier::kHost, 3);
  }
  EXPECT_EQ(ledger.current().total(), 0);
}

}  // namespace
}  // namespace zeroshard
