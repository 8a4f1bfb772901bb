#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>
#include <vector>

#include "support/accelerator/streams.h"

// A simulated accelerator for tests, as torch's PrivateUse1 device: see docs/design/device.md. Everything about order
// is real (streams, events, memory that the host cannot read, poisoned buffers), nothing about speed is.
namespace zeroshard::accelerator {

// Makes the device known to torch. Any number of times; no fork afterwards.
void start();

c10::Device device(int index);
c10::Stream to_stream(StreamKey stream);
StreamKey to_key(c10::Stream stream);

// Operators without shapes of their own, which made the host wait. Sorted.
std::vector<std::string> operators_that_waited();

}  // namespace zeroshard::accelerator
