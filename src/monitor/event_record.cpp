#include "monitor/event_record.h"

#include <bit>
#include <cmath>
#include <limits>

#include "monitor/crc32c.h"

namespace zeroshard {
namespace {

// Field numbers of event.proto and summary.proto.
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;

template <typename Integer>
void append_little_endian(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof(value); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

// Builds one protobuf message, field by field.
class ProtoMessage {
 public:
  ProtoMessage& integer(uint32_t field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  ProtoMessage& fixed(uint32_t field, double value) {
    key(field, 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
    return *this;
  }
  ProtoMessage& fixed(uint32_t field, float value) {
    key(field, 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  ProtoMessage& text(uint32_t field, std::string_view value) {  // also for a nested message
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(uint32_t field, uint32_t wire_type) { varint(field << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

uint32_t masked_crc(std::string_view data) {
  // TFRecord files mask checksums, because data that ends with its own unmasked checksum always has the same checksum.
  return std::rotr(crc32c(data), 15) + 0xA282EAD8;
}

// Converts `value` to float. A finite value beyond the range of float becomes an infinity of the same sign, because its
// direct conversion is undefined.
float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  if (std::isfinite(value) && std::abs(value) > kMax)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(std::copysign(1.0, value)));
  return static_cast<float>(value);
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string record;
  append_little_endian(record, uint64_t{data.size()});
  append_little_endian(record, masked_crc(record));
  record += data;
  append_little_endian(record, masked_crc(data));
  return record;
}

std::string version_event(double time) {
  return ProtoMessage().fixed(kWallTime, time).text(kFileVersion, "brain.Event:2").bytes();
}

std::string session_start_event(double time, int64_t step) {
  const std::string log = ProtoMessage().integer(kSessionStatus, kSessionStart).bytes();
  return ProtoMessage().fixed(kWallTime, time).integer(kStep, uint64_t(step)).text(kSessionLog, log).bytes();
}

std::string scalars_event(double time, int64_t step, const MetricValues& values) {
  ProtoMessage summary;
  for (const auto& [name, value] : values)
    summary.text(kSummaryValue, ProtoMessage().text(kValueTag, name).fixed(kValueSimple, to_float(value)).bytes());
  return ProtoMessage().fixed(kWallTime, time).integer(kStep, uint64_t(step)).text(kSummary, summary.bytes()).bytes();
}

}  // namespace zeroshard
