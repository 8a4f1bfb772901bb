#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "zeroshard/metrics.h"

// Writes records of TensorBoard's event files: messages of the type tensorflow.Event, framed as in a TFRecord file.
namespace zeroshard {

// Frames `data`: length, masked CRC-32C of the length, `data`, masked CRC-32C of `data`; all little-endian.
std::string tfrecord(std::string_view data);

// Returns the first message of a file.
std::string version_event(double time);
// Returns a message that makes TensorBoard drop `step` and later steps of earlier files. The first such message of a
// run only marks the beginning of the run, so every file has one.
std::string session_start_event(double time, int64_t step);
// Returns a message with the values as scalars, in single precision.
std::string scalars_event(double time, int64_t step, const MetricValues& values);

}  // namespace zeroshard
