#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "comm/local_comm.h"
#include "device/detachable_storage.h"
#include "device/slot_ring.h"
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

const std::vector<std::function<void(const at::Tensor&)>> kReads = {[](const at::Tensor& t) { t.sum(); },
                                                                    [](const at::Tensor& t) { t[0].item<float>(); },
                                                                    [](const at::Tensor& t) { t.norm(); },
                                                                    [](const at::Tensor& t) { t.clone(); },
                                                                    [](const at::Tensor& t) { t.fill_(1); },
                                                                    [](const at::Tensor& t) { t.const_data_ptr(); },
                                                                    [](const at::Tensor& t) { t.slice(0, 1, 3) + 1; }};

void expect_message(const at::Tensor& tensor, const std::string& message) {
  for (const auto& read : kReads) {
    try {
      read(tensor);
      FAIL() << "a read without memory went through";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
    }
  }
}

TEST(DetachableStorage, ReadingWithoutMemoryThrowsTheMessage) {
  std::vector<float> memory(4, 1.5F);
  const c10::Storage storage = make_detachable_storage(16, at::kCPU, "parameter 'w' is sharded");
  const at::Tensor tensor = view_of(storage, at::kFloat, {4}), part = tensor.slice(0, 2, 4);
  EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{4}));
  EXPECT_EQ(tensor.scalar_type(), at::kFloat);
  for (int round = 0; round < 3; ++round) {
    expect_message(tensor, "parameter 'w' is sharded");
    expect_message(part, "parameter 'w' is sharded");
    attach_memory(storage, memory.data());
    EXPECT_EQ(tensor.data_ptr(), memory.data());
    EXPECT_EQ(part.sum().item<float>(), 3);
    EXPECT_TRUE(is_detachable(part));
    detach_memory(storage);
  }
  set_message(storage, "has no values any more");
  expect_message(part, "has no values any more");
}

TEST(DetachableStorage, ViewsSavedBeforeAreValidWhenMemoryComesBack) {
  const int64_t numel = 12;
  const c10::Storage storage = make_detachable_storage(numel * 4, at::kCPU, "sharded");
  // Autograd keeps such a view of a weight.
  const at::Tensor saved = view_of(storage, at::kFloat, {numel}).slice(0, 2).view({2, 5}).t();
  std::vector<float> first(numel), second(numel);
  for (int i = 0; i < numel; ++i) first[size_t(i)] = float(i), second[size_t(i)] = float(100 + i);

  attach_memory(storage, first.data());
  EXPECT_EQ(saved.contiguous().data_ptr<float>()[1], 7);
  detach_memory(storage);
  attach_memory(storage, second.data());
  EXPECT_EQ(saved.data_ptr(), second.data() + 2);
  const at::Tensor expected = at::arange(102, 112, at::kFloat).view({2, 5}).t();
  EXPECT_TRUE(saved.equal(expected));
  EXPECT_EQ(storage.nbytes(), size_t(numel * 4));
}

TEST(DetachableStorage, ViewsOwnTheMemoryThatIsLeftToThem) {
  at::Tensor owner = at::full({8}, 2.5F);
  const c10::weak_intrusive_ptr<c10::TensorImpl> alive(owner.getIntrusivePtr());
  at::Tensor view;
  {
    const c10::Storage storage = make_detachable_storage(16, at::kCPU, "sharded");
    view = view_of(storage, at::kFloat, {4});
    leave_memory(storage, owner.data_ptr<float>() + 4, owner);
  }
  owner.reset();
  EXPECT_FALSE(is_detachable(view));
  EXPECT_EQ(view.sum().item<float>(), 10);
  EXPECT_FALSE(alive.expired());
  view.reset();
  EXPECT_TRUE(alive.expired());
}

TEST_F(SlotRingTest, ASlotWhoseMemoryWasTakenGetsOther) {
  SlotRing ring = make({{64, 1}});
  SlotRing::Slot* const slot = ring.acquire(64);
  const void* const data = slot->data();
  const at::Tensor taken = ring.take_memory(slot);
  EXPECT_EQ(taken.const_data_ptr(), data);
  EXPECT_NE(slot->data(), data);
  EXPECT_EQ(held(ledger_), 64);  // what was taken is the user's
  SlotRing::Slot* const beyond = ring.acquire(64);
  const at::Tensor other = ring.take_memory(beyond);
  EXPECT_FALSE(beyond->buffer());
  EXPECT_EQ(held(ledger_), 64);
  ring.release(beyond);
  ring.release(slot);
  EXPECT_EQ(ring.try_acquire(64), slot);
}

}  // namespace
}  // namespace zeroshard
