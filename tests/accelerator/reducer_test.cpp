#include "reduce/reducer.h"

#include <ATen/ops/ones.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "accelerator/support.h"
#include "reduce/support.h"

namespace zeroshard::accelerator {
namespace {

// A gradient waits to be packed with others. The next one comes on another stream, on which both are packed, and only
// then may the first stream lend the memory of its gradient again.
TEST(DeviceReducer, PacksAGradientThatWaitedBeforeItsMemoryIsLentAgain) {
  begin_on_devices(Schedule::kLazy, /*seed=*/0);
  {
    const auto comms = make_device_world(1);
    const std::vector<UnitLayout> units = {unit("a", {{{4}, DType::kFloat32}, {{4}, DType::kFloat32}}, 1),
                                           unit("b", {{{4}, DType::kFloat32}}, 1)};
    const at::TensorOptions options = at::TensorOptions(device(0)).dtype(at::kFloat);
    PlacementOptions placement;
    placement.on_device = true;
    Reducer::Options reduce;
    reduce.device = device(0);
    Ledger ledger;
    Reducer reducer(units, place(units, placement), reduce, *comms[0], ledger);
    Streams& streams = Streams::get();
    streams.wait_for_device(0);
    {
      const c10::StreamGuard guard(to_stream(streams.make_stream(0)));
      reducer.add(0, 0, at::ones({4}, options), /*sync=*/true);
    }
    {
      const c10::StreamGuard guard(to_stream(streams.make_stream(0)));
      reducer.add(1, 0, at::ones({4}, options), /*sync=*/true);
    }
    reducer.end_backward(/*sync=*/true);
    EXPECT_TRUE(reducer.buckets()[0].reduced().tensor().slice(0, 0, 4).cpu().equal(at::ones({4})));
    EXPECT_EQ(streams.races().found(), std::vector<std::string>{});
  }
  end_on_devices();
}

}  // namespace
}  // namespace zeroshard::accelerator
