#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <set>

#include "comm/local_comm.h"
#include "device/slot_ring.h"
#include "device/swap_storage.h"
#include "support/forwarding_comm.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

int64_t held(const Ledger& ledger) {
  return ledger.current().at(Category::kGatherRing, Tier::kDevice);
}

class SlotRingTest : public ::testing::Test {
 protected:
  SlotRing make(const std::map<int64_t, int>& slots) {
    return SlotRing(slots, [this](int64_t bytes) {
      sizes_.push_back(bytes);
      return FlatBuffer(bytes, at::kCPU, ledger_, Category::kGatherRing);
    });
  }
  Ledger ledger_;
  std::vector<int64_t> sizes_;
};

TEST_F(SlotRingTest, AllocatesEverySlotOnceSmallestClassFirst) {
  {
    SlotRing ring = make({{256, 2}, {64, 1}});
    EXPECT_EQ(sizes_, (std::vector<int64_t>{64, 256, 256}));
    EXPECT_EQ(held(ledger_), 64 + 256 + 256);
    for (int i = 0; i < 5; ++i) ring.release(ring.acquire(256));
    EXPECT_EQ(sizes_.size(), 3U);
  }
  EXPECT_EQ(held(ledger_), 0);
}

TEST_F(SlotRingTest, LendsEachSlotToOneUserOfItsClass) {
  SlotRing ring = make({{64, 1}, {256, 2}});
  SlotRing::Slot *a = ring.try_acquire(256), *b = ring.try_acquire(256);
  ASSERT_TRUE(a && b);
  EXPECT_NE(a->data(), b->data());
  EXPECT_EQ(ring.try_acquire(256), nullptr);
  EXPECT_EQ(ring.try_acquire(128), nullptr);  // no such class
  EXPECT_NE(ring.try_acquire(64), nullptr);   // another class is free
  ring.release(a);
  EXPECT_EQ(ring.try_acquire(256), a);
}

TEST_F(SlotRingTest, OverflowIsFreedAtItsRelease) {
  SlotRing ring = make({{64, 1}});
  SlotRing::Slot* const own = ring.acquire(64);
  SlotRing::Slot* const extra = ring.acquire(64);
  ASSERT_NE(own, extra);
  EXPECT_EQ(held(ledger_), 128);
  ring.release(own);
  EXPECT_EQ(held(ledger_), 128);
  ring.release(extra);
  EXPECT_EQ(held(ledger_), 64);
  EXPECT_EQ(ring.try_acquire(64), own);
}

TEST_F(SlotRingTest, ASecondReleaseIsABug) {
  SlotRing ring = make({{64, 1}});
  SlotRing::Slot* const slot = ring.acquire(64);
  ring.release(slot);
  EXPECT_THROW(ring.release(slot), InternalError);
}

TEST(FlatBuffer, IsZeroedAndCountedWhileItLives) {
  Ledger ledger;
  for (const int64_t bytes : {int64_t{0}, int64_t{12}, int64_t{3} << 20}) {
    FlatBuffer buffer(bytes, at::kCPU, ledger, Category::kGatherRing);
    EXPECT_TRUE(bool(buffer));
    EXPECT_EQ(held(ledger), bytes);
    EXPECT_EQ(buffer.view(at::kByte, 0, bytes).count_nonzero().item<int64_t>(), 0);
    FlatBuffer moved = std::move(buffer);
    EXPECT_FALSE(bool(buffer));  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_EQ(held(ledger), bytes);
    moved = FlatBuffer();
    EXPECT_EQ(held(ledger), 0);
  }
}

TEST(FlatBuffer, OfTheTransportIsCountedToo) {
  Ledger ledger;
  const auto comm = make_single_comm();
  {
    FlatBuffer buffer(*comm, 4096, at::kCPU, ledger, Category::kGatherRing, "test");
    EXPECT_EQ(held(ledger), 4096);
    buffer.view(at::kFloat, 64, 3).fill_(2);
    EXPECT_EQ(buffer.view(at::kFloat, 0, 1024).sum().item<float>(), 6);
  }
  EXPECT_EQ(held(ledger), 0);
}

// Of which a collective may be under way.
class WritingComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  bool still_writes() const override { return writes; }
  bool writes = false;

 private:
  void before(OpKind, int64_t, std::string_view) override {}
};

TEST(FlatBuffer, IsLeftToTheProcessWhileACollectiveMayWriteToIt) {
  Ledger ledger;
  const auto single = make_single_comm();
  WritingComm comm(*single);
  for (const bool writes : {true, false}) {
    comm.writes = false;
    FlatBuffer first(int64_t{4} << 20, at::kCPU, ledger, Category::kGatherRing, &comm);
    char* const data = first.data();
    FlatBuffer buffer = std::move(first);
    comm.writes = writes;
    buffer = FlatBuffer();
    EXPECT_EQ(held(ledger), 0);
    EXPECT_EQ(::msync(data, 4096, MS_ASYNC) == 0, writes);  // whether it is mapped
  }
}

TEST(Carver, CutsOneAllocationWithoutOverlap) {
  Ledger ledger;
  FlatBuffer buffer(4 * 3 + 2 * 5, at::kCPU, ledger, Category::kGatherRing);
  Carver carver(buffer);
  const at::Tensor a = carver.take(DType::kFloat32, 3), b = carver.take(DType::kBFloat16, 5);
  EXPECT_EQ(a.data_ptr(), buffer.data());
  EXPECT_EQ(b.data_ptr(), buffer.data() + 12);
  EXPECT_EQ(b.scalar_type(), at::kBFloat16);
}

TEST(SwapStorage, AGuardThrowsItsMessageWhenRead) {
  at::Tensor tensor = at::full({4}, 7.0F);
  point_at(tensor, make_guard_storage(16, at::kCPU, "parameter 'w' is sharded"), 0);
  EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{4}));
  EXPECT_EQ(tensor.scalar_type(), at::kFloat);
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { tensor.sum(); }, [&] { tensor[0].item<float>(); }, [&] { (tensor * 2).norm(); },
           [&] { tensor.clone(); }, [&] { tensor.data_ptr<float>(); }, [&] { tensor.fill_(1); }}) {
    try {
      read();
      FAIL() << "a read of a guarded tensor went through";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("parameter 'w' is sharded"));
    }
  }
}

TEST(SwapStorage, ViewsSavedBeforeAreValidWhenMemoryComesBack) {
  const int64_t numel = 12;
  const c10::Storage storage = make_empty_storage(numel * 4, at::kCPU);
  at::Tensor tensor = at::empty({0}, at::kFloat);
  tensor.set_(storage, 2, {2, 5});
  const at::Tensor saved = tensor.t();  // what autograd keeps of a weight
  std::vector<float> first(numel), second(numel);
  for (int i = 0; i < numel; ++i) first[size_t(i)] = float(i), second[size_t(i)] = float(100 + i);

  set_memory(storage, first.data(), at::kCPU);
  EXPECT_EQ(saved.contiguous().data_ptr<float>()[1], 7);
  set_memory(storage, nullptr, at::kCPU);
  set_memory(storage, second.data(), at::kCPU);
  EXPECT_EQ(saved.data_ptr(), second.data() + 2);
  const at::Tensor expected = at::arange(102, 112, at::kFloat).view({2, 5}).t();
  EXPECT_TRUE(saved.equal(expected));
  EXPECT_EQ(storage.nbytes(), size_t(numel * 4));
}

TEST(SwapStorage, ATensorGoesBackAndForthBetweenGuardAndMemory) {
  const c10::Storage storage = make_empty_storage(32, at::kCPU);
  std::vector<float> memory(8, 1.5F);
  set_memory(storage, memory.data(), at::kCPU);
  at::Tensor tensor = at::empty({3}, at::kFloat);
  for (int round = 0; round < 3; ++round) {
    point_at(tensor, storage, 5);
    EXPECT_EQ(tensor.data_ptr(), memory.data() + 5);
    EXPECT_EQ(tensor.sum().item<float>(), 4.5F);
    point_at(tensor, make_guard_storage(12, at::kCPU, "guarded"), 0);
    EXPECT_ANY_THROW(tensor.sum());
  }
}

}  // namespace
}  // namespace zeroshard
