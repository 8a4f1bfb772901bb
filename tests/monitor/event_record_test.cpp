#include "monitor/event_record.h"

#include <gtest/gtest.h>

#include <cmath>

#include "monitor/crc32c.h"

namespace zeroshard {
namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// RFC 3720, B.4, and the customary check value.
TEST(Crc32c, VectorsOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
}

// Wire types and field numbers by hand, from event.proto and summary.proto.
TEST(EventRecord, BytesOfEachMessage) {
  EXPECT_EQ(hex(version_event(1.0)),
            "09000000000000f03f"
            "1a0d"
            "627261696e2e4576656e743a32");
  EXPECT_EQ(hex(session_start_event(1.0, 300)),
            "09000000000000f03f"
            "10ac02"
            "3a02"
            "0801");
  EXPECT_EQ(hex(scalars_event(1.0, 5, {{"loss", 2.5}, {"lr", -1.0}})),
            "09000000000000f03f"
            "1005"
            "2a18"
            "0a0b"
            "0a04"
            "6c6f7373"
            "1500002040"
            "0a09"
            "0a02"
            "6c72"
            "15000080bf");
}

TEST(EventRecord, WhatSinglePrecisionCannotHold) {
  const std::string head =
      "09000000000000f03f"
      "1000"
      "2a0c"
      "0a0a"
      "0a03"
      "616263"
      "15";
  const auto bytes_of = [](double value) { return hex(scalars_event(1.0, 0, {{"abc", value}})); };
  EXPECT_EQ(bytes_of(1e300), head + "0000807f");
  EXPECT_EQ(bytes_of(-1e300), head + "000080ff");
  EXPECT_EQ(bytes_of(INFINITY), head + "0000807f");
  EXPECT_EQ(bytes_of(std::nan("")), head + "0000c07f");
}

// The record that begins the files of a well-known writer, at time 1.
TEST(EventRecord, FramesAsATfrecord) {
  const std::string data = "123456789";
  const std::string record = tfrecord(data);
  ASSERT_EQ(record.size(), 8 + 4 + data.size() + 4);
  EXPECT_EQ(hex(record.substr(0, 8)), "0900000000000000");
  EXPECT_EQ(record.substr(12, 9), data);
  // 0xE3069283 turned right by 15 bits is 0x2507C60D; plus 0xA282EAD8 is 0xC78AB0E5.
  EXPECT_EQ(hex(record.substr(21)), "e5b08ac7");
}

}  // namespace
}  // namespace zeroshard
