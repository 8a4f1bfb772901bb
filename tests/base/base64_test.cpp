#include "base/base64.h"

#include <gtest/gtest.h>

#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

std::string encoded(std::string_view text) {
  return to_base64({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

// The examples of RFC 4648.
TEST(Base64, KnownValues) {
  EXPECT_EQ(encoded(""), "");
  EXPECT_EQ(encoded("f"), "Zg==");
  EXPECT_EQ(encoded("fo"), "Zm8=");
  EXPECT_EQ(encoded("foo"), "Zm9v");
  EXPECT_EQ(encoded("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encoded("\xfb\xff\xfe"), "+//+");
}

TEST(Base64, RoundTrip) {
  SeededRandom random(7);
  for (size_t size = 0; size < 100; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = std::byte(random() & 255);
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
  }
}

TEST(Base64, OtherTextIsRefused) {
  for (const char* const text : {"Zg=", "Zg", "Z!==", "Zg==Zg==", "====", "Zm 9"})
    EXPECT_THROW(from_base64(text), ValueError);
}

}  // namespace
}  // namespace zeroshard
