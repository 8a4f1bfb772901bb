#include "device/flat_buffer.h"

#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include "accelerator/support.h"

namespace zeroshard::accelerator {
namespace {

// Memory may be lent again to the stream under which it was made. It comes back from there after what the stream that
// was current at its end has done with it.
TEST(FlatBuffer, GoesUnderAnotherStreamThanItCameUnder) {
  begin_on_devices(Schedule::kLate, /*seed=*/1);
  Ledger ledger;
  {
    FlatBuffer buffer(4096, device(0), ledger, Category::kParameters);
    c10::Event made(c10::DeviceType::PrivateUse1);
    made.record(to_stream(current_stream(0)));
    const c10::StreamGuard guard(to_stream(Streams::get().make_stream(0)));
    made.block(guard.current_stream());
    buffer.view(at::kFloat, 0, 1024).fill_(1);
    { const FlatBuffer last = std::move(buffer); }
  }
  EXPECT_THAT(Streams::get().races().found(), ::testing::IsEmpty());
  end_on_devices();
}

}  // namespace
}  // namespace zeroshard::accelerator
