#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

RankTable table(int rank, std::vector<TensorRecord> tensors) {
  return {{"rank-0000" + std::to_string(rank) + ".safetensors", 10'000, 100, 7},
          R"({"rank":)" + std::to_string(rank) + "}",
          std::move(tensors)};
}

TensorRecord tensor(const std::string& name, Range elements, int64_t offset) {
  TensorRecord record{name, "weight", "F32", {name + ".tied"}, {3, 4}, true, 5, {}};
  if (elements.size() > 0) record.slices.push_back({0, elements, offset, {0x0123456789abcdefULL}});
  return record;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TensorRecord empty_tensor() {
  TensorRecord record = tensor("empty", {0, 0}, 0);
  record.shape = {0, 4};
  return record;
}

TEST(Manifest, RoundTrip) {
  Manifest manifest;
  manifest.step = 12;
  manifest.latest = false;
  manifest.state = R"({"client":[1,2.5,null]})";
  manifest.versions = {{"zeroshard", "1"}};
  merge({table(0, {tensor("a", {0, 5}, 100), empty_tensor()}), table(1, {tensor("a", {5, 12}, 100)})}, manifest);
  const Manifest read = parse_manifest(to_text(manifest), "m");
  EXPECT_EQ(to_text(read), to_text(manifest));
  EXPECT_EQ(read.step, 12);
  EXPECT_FALSE(read.latest);
  EXPECT_EQ(read.world_size(), 2);
  EXPECT_EQ(read.state, manifest.state);
  ASSERT_EQ(read.tensors.size(), 2U);
  ASSERT_EQ(read.tensors[0].slices.size(), 2U);
  EXPECT_EQ(read.tensors[0].slices[1].file, 1U);
  EXPECT_EQ(read.tensors[0].slices[1].elements, (Range{5, 12}));
  EXPECT_EQ(read.tensors[0].slices[1].hashes, (std::vector<uint64_t>{0x0123456789abcdefULL}));
  const TensorIndex index(read);
  EXPECT_EQ(index.find("a.tied", "weight"), &read.tensors[0]);
  EXPECT_EQ(index.find("a", "exp_avg"), nullptr);
}

TEST(Manifest, EveryDamagedByteIsNoticed) {
  Manifest manifest;
  merge({table(0, {tensor("a", {0, 12}, 100)})}, manifest);
  const std::string text = to_text(manifest);
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    for (int bit = 0; bit < 8; ++bit) {
      damaged[at] = char(text[at] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(damaged, "m"), ValueError) << "byte " << at << ", bit " << bit;
    }
    EXPECT_THROW(parse_manifest(text.substr(0, at), "m"), ValueError) << "cut at " << at;
    damaged[at] = char(text[at] ^ 0x80);  // no longer UTF-8, as the message has to be
    const std::string message = error_of([&] { parse_manifest(damaged, "m"); });
    EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' '; })) << message;
    EXPECT_THAT(message, HasSubstr("m"));
  }
}

TEST(Manifest, RanksMustMakeWholeTensors) {
  Manifest manifest;
  const auto merged = [&](std::vector<TensorRecord> first, std::vector<TensorRecord> second) {
    manifest = {};
    return error_of([&] { merge({table(0, std::move(first)), table(1, std::move(second))}, manifest); });
  };
  EXPECT_THAT(merged({tensor("a", {0, 5}, 100)}, {tensor("a", {6, 12}, 100)}),
              HasSubstr("'a' (weight): elements from 5 to 6 are missing or there twice"));
  EXPECT_THAT(merged({tensor("a", {0, 5}, 100)}, {tensor("a", {4, 12}, 100)}), HasSubstr("missing or there twice"));
  EXPECT_THAT(merged({tensor("a", {0, 5}, 100)}, {}), HasSubstr("has 5 elements in its files and 12 by its shape"));
  EXPECT_THAT(merged({tensor("a", {0, 5}, 99)}, {tensor("a", {5, 12}, 100)}), HasSubstr("does not lie within"));
  EXPECT_THAT(merged({tensor("a", {0, 5}, 9'999)}, {tensor("a", {5, 12}, 100)}), HasSubstr("does not lie within"));
  TensorRecord other = tensor("a", {5, 12}, 100);
  other.updates = 6;
  EXPECT_THAT(merged({tensor("a", {0, 5}, 100)}, {other}), HasSubstr("the ranks disagree on 'a'"));
  TensorRecord alias = tensor("a.tied", {0, 12}, 100);
  EXPECT_THAT(merged({tensor("a", {0, 5}, 100), alias}, {tensor("a", {5, 12}, 100)}), HasSubstr("listed twice"));
}

// The checksum is no protection against a hostile writer: the contents are checked as well.
TEST(Manifest, HostileContents) {
  const auto reject = [](const std::function<void(Manifest&)>& change) {
    Manifest manifest;
    merge({table(0, {tensor("a", {0, 12}, 100)})}, manifest);
    change(manifest);
    return error_of([&] { parse_manifest(to_text(manifest), "m"); });
  };
  EXPECT_THAT(reject([](Manifest& m) { m.files[0].name = "../../etc/passwd"; }),
              HasSubstr("is not the name of a file"));
  EXPECT_THAT(reject([](Manifest& m) { m.files[0].name = "/dev/zero"; }), HasSubstr("is not the name of a file"));
  EXPECT_THAT(reject([](Manifest& m) { m.files[0].name = ".hidden"; }), HasSubstr("is not the name of a file"));
  EXPECT_THAT(reject([](Manifest& m) { m.files[0].header_bytes = 10'001; }), HasSubstr("header_bytes"));
  EXPECT_THAT(reject([](Manifest& m) { m.tensors[0].dtype = "F31"; }), HasSubstr("dtype 'F31' is not known"));
  EXPECT_THAT(reject([](Manifest& m) { m.tensors[0].shape = {INT64_MAX, 2}; }), HasSubstr("more elements than"));
  EXPECT_THAT(reject([](Manifest& m) { m.tensors[0].slices[0].file = 1; }), HasSubstr("lies in file 1 of 1"));
  EXPECT_THAT(reject([](Manifest& m) { m.tensors[0].slices[0].hashes.clear(); }), HasSubstr("digits of checksums"));
  EXPECT_THAT(reject([](Manifest& m) { m.tensors[0].slices[0].elements.end = INT64_MAX; }), HasSubstr("too large"));
  EXPECT_THAT(reject([](Manifest& m) { m.rank_states.clear(); }), HasSubstr("'ranks' is empty"));
  EXPECT_THAT(reject([](Manifest& m) { m.step = -1; }), HasSubstr("step is not a whole number"));
  EXPECT_THAT(reject([](Manifest& m) { m.state = "[" + std::string(80, '[') + std::string(80, ']') + "]"; }),
              HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace zeroshard
