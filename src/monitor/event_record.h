#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "zeroshard/metrics.h"

// Makes the messages of TensorBoard's event files, which are of the type tensorflow.Event, and frames them as in a
// TFRecord file.
namespace zeroshard {

// Returns `data` as a record, which has the length, the masked CRC-32C of the length, `data`, and the masked CRC-32C of
// `data`. All numbers are little-endian.
std::string tfrecord(std::string_view data);

// Returns the message with which every file must begin.
std::string version_event(double time);
// Returns a message that makes TensorBoard drop what it has read of `step` and of later steps. At the first such
// message in a directory TensorBoard's server drops nothing, because it takes that message as the beginning of the run.
std::string session_start_event(double time, int64_t step);
// Returns a message that has the values as scalars, in single precision.
std::string scalars_event(double time, int64_t step, const MetricValues& values);

}  // namespace zeroshard
