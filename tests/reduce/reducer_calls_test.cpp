#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <utility>

#include "comm/local_comm.h"
#include "reduce/reducer.h"
#include "reduce/support.h"
#include "support/comm_world.h"
#include "support/test_comms.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::run_local_world;

TEST(Reducer, AUnitsLastEndLaunchesItsBucketWithoutGradients) {
  const auto comm = make_single_comm();
  RecordingComm recording(*comm);
  const std::vector<UnitLayout> units = {unit("twice", {{{4}, DType::kFloat32}}, 1),
                                         unit("once", {{{4}, DType::kFloat32}}, 1)};
  const at::Tensor grad = at::ones({4});
  Ledger ledger;
  Reducer reducer(units, place(units, {}), {}, recording, ledger);
  for (int pass = 0; pass < 3; ++pass) {
    SCOPED_TRACE(pass);
    recording.reset();
    reducer.begin_backward(std::vector<size_t>{0, 1, 1, 0}, /*sync=*/true, recording);
    reducer.end_unit_backward(0);
    EXPECT_EQ(recording.count(OpKind::kExchange), 0);
    reducer.end_unit_backward(1);
    EXPECT_EQ(recording.count(OpKind::kExchange), 1);
    reducer.end_unit_backward(0);
    EXPECT_EQ(recording.count(OpKind::kExchange), pass == 2 ? 1 : 2);
    if (pass > 0) reducer.add(0, 0, grad, /*sync=*/true);  // after the last end: late, and expected there from then on
    reducer.end_backward(/*sync=*/true);
    EXPECT_EQ(recording.count(OpKind::kExchange), pass == 1 ? 3 : 2);
    EXPECT_TRUE(reducer.buckets()[0].reduced().tensor().slice(0, 0, 4).equal(pass > 0 ? grad : at::zeros({4})));
    reducer.end_step();
  }
}

// Rank 0's forward pass needs unit 2 first; then its backward pass gives gradients of unit 0 before those of unit 1.
TEST(Reducer, TellsInWhichOrderTheNextForwardPassNeedsUnits) {
  const auto errors = run_local_world(3, [](Comm& comm) {
    std::vector<UnitLayout> units;
    for (const char* name : {"a", "b", "c"}) units.push_back(unit(name, {{{4}, DType::kFloat32}}, 3));
    units.push_back(unit("frozen", {{{4}, DType::kFloat32}}, 3, /*frozen=*/0));
    Ledger ledger;
    PlacementOptions placement;
    placement.world_size = 3;
    Reducer reducer(units, place(units, placement), {}, comm, ledger);
    EXPECT_EQ(reducer.order_of_forward(), (std::vector<size_t>{0, 1, 2, 3}));
    const bool leads = comm.rank() == 0;
    const std::vector<size_t> needed = leads ? std::vector<size_t>{2, 3, 1, 0} : std::vector<size_t>{0, 1, 2, 3};
    reducer.begin_backward(needed, /*sync=*/true, comm);
    EXPECT_EQ(reducer.order_of_forward(), (std::vector<size_t>{2, 1, 0, 3}));
    for (const size_t u : leads ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{2, 1, 0})
      reducer.add(u, 0, at::ones({4}), /*sync=*/true);
    reducer.end_backward(/*sync=*/true);
    EXPECT_EQ(reducer.order_of_forward(), (std::vector<size_t>{2, 1, 0, 3}));
    comm.barrier("end");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Where it goes decides how sums are rounded, and when units end depends on the stage.
TEST(Reducer, TheSumOfNoSyncGoesWithGradientsNotWithAnEnd) {
  const auto errors = run_local_world(2, [](Comm& comm) {
    PlacementOptions placement;
    placement.world_size = 2;
    placement.stage = 1;
    const std::vector<UnitLayout> units = {unit("u", {{{4}, DType::kFloat32}}, 2)};
    Ledger ledger;
    Reducer reducer(units, place(units, placement), {}, comm, ledger);
    const bool is_first = comm.rank() == 0;
    const auto gradient = [&](float first, float other) { return at::full({4}, is_first ? first : other); };
    for (const bool ends_early : {false, true}) {
      reducer.add(0, 0, gradient(1e8F, 0), /*sync=*/false);
      reducer.begin_backward(std::vector<size_t>{0}, /*sync=*/true, comm);
      if (ends_early) reducer.end_unit_backward(0);
      reducer.add(0, 0, gradient(-1e8F, 1), /*sync=*/true);
      reducer.end_unit_backward(0);
      reducer.launch_all(/*sync=*/true);
      reducer.launch_again(reducer.late());
      reducer.end_backward(/*sync=*/true);
      const GradBucket& bucket = reducer.buckets()[0];
      if (bucket.group().layout.owned(0, comm.rank()).size() > 0) {
        EXPECT_EQ(bucket.reduced().tensor()[0].item<float>(), 1) << ends_early;
      }
      reducer.end_step();
      comm.barrier("step");
    }
    // Without gradients it goes when the pass ends.
    reducer.add(0, 0, gradient(3, 4), /*sync=*/false);
    reducer.begin_backward(std::vector<size_t>{0}, /*sync=*/true, comm);
    reducer.end_backward(/*sync=*/true);
    const GradBucket& bucket = reducer.buckets()[0];
    if (bucket.group().layout.owned(0, comm.rank()).size() > 0) {
      EXPECT_EQ(bucket.reduced().tensor()[0].item<float>(), 7);
    }
    comm.barrier("end");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// One exchange fails once: it does not start, or its pieces do not come.
class OnceFailingComm final : public ForwardingComm {
 public:
  OnceFailingComm(Comm& inner, int fail_at, bool starts) : ForwardingComm(inner), fail_at_(fail_at), starts_(starts) {}
  std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) override {
    const bool fails = ++calls_ == fail_at_;
    if (fails && !starts_) throw std::runtime_error("planted");
    ++started;
    return std::make_unique<Failing>(inner().exchange(full, scratch, tag), fails);
  }
  int started = 0;

 private:
  class Failing final : public Exchange {
   public:
    Failing(std::unique_ptr<Exchange> exchange, bool fails) : exchange_(std::move(exchange)), fails_(fails) {}
    void wait() override {
      if (std::exchange(fails_, false)) throw std::runtime_error("planted");
      exchange_->wait();
    }
    std::span<const void* const> pieces() const override { return exchange_->pieces(); }
    DType dtype() const override { return exchange_->dtype(); }
    void release() override { exchange_->release(); }
    void drain() override { exchange_->drain(); }

   private:
    std::unique_ptr<Exchange> exchange_;
    bool fails_;
  };
  void before(OpKind, int64_t, std::string_view) override {}

  int fail_at_, calls_ = 0;
  bool starts_;
};

// Other ranks wait for every bucket. So each is launched in spite of an error, and once.
TEST(Reducer, APassInWhichAnExchangeFailsCanBeDiscarded) {
  const std::vector<UnitLayout> units = {unit("a", {{{4}, DType::kFloat32}}, 1), unit("b", {{{4}, DType::kFloat32}}, 1),
                                         unit("c", {{{4}, DType::kFloat32}}, 1)};
  for (const bool overlap : {false, true}) {
    for (int fail_at = 1; fail_at <= 3; ++fail_at) {
      for (const bool starts : {false, true}) {
        SCOPED_TRACE(concat("overlap ", overlap, ", call ", fail_at, ", starts ", starts));
        const auto comm = make_single_comm();
        OnceFailingComm failing(*comm, fail_at, starts);
        Ledger ledger;
        Reducer::Options options;
        options.overlap = overlap;
        Reducer reducer(units, place(units, {}), options, failing, ledger);
        const auto backward = [&](float value) {
          for (const size_t u : {2, 1, 0}) reducer.add(u, 0, at::full({4}, value), /*sync=*/true);
          reducer.launch_all(/*sync=*/true);
        };
        EXPECT_THROW(backward(1), std::runtime_error);
        reducer.launch_all(/*sync=*/true);
        EXPECT_EQ(failing.started, 3);
        reducer.discard();
        backward(2);
        reducer.end_backward(/*sync=*/true);
        EXPECT_EQ(failing.started, 6);
        for (size_t u = 0; u < 3; ++u)
          EXPECT_TRUE(reducer.buckets()[u].reduced().tensor().slice(0, 0, 4).equal(at::full({4}, 2.0F))) << u;
      }
    }
  }
}

}  // namespace
}  // namespace zeroshard
