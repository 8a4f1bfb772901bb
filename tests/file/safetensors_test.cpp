#include "file/safetensors.h"

#include <cstring>

#include "file/support.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using testing::message_of;
using testing::put;
using testing::Random;
using testing::random_bytes;
using testing::SeededRandom;
using testing::seeds;
using testing::TemporaryDirectory;

using Metadata = std::map<std::string, std::string>;

SafetensorsHeader parse(const std::string& json, int64_t data_bytes) {
  return parse_safetensors_header(json, 8 + int64_t(json.size()) + data_bytes, "FILE");
}

std::string json_of(const std::string& header) {
  return header.substr(8);
}

const char* const kDtypeNames[] = {
    "BOOL", "U8",  "I8",  "F4",   "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16",  "U16", "F16", "BF16", "I32",     "U32",     "F32",     "C64",     "F64",     "I64",         "U64"};

std::vector<SafetensorsEntry> random_entries(Random& random) {
  const std::string pieces[] = {"model", ".", "layers", "0", "\"", "\\", "\n", "ß", "重", "😀", std::string(1, '\0'),
                                "/"};
  std::vector<SafetensorsEntry> entries;
  int64_t next = 0;
  for (uint64_t i = random() % 20; i > 0; --i) {
    SafetensorsEntry entry;
    entry.name = std::to_string(i) + ":";
    for (uint64_t k = random() % 6; k > 0; --k) entry.name += pieces[random() % std::size(pieces)];
    entry.dtype = kDtypeNames[random() % std::size(kDtypeNames)];
    int64_t numel = 1;
    for (uint64_t k = random() % 4; k > 0; --k) entry.shape.push_back(int64_t(random() % 5));
    entry.shape.push_back(4 * int64_t(random() % 3));  // whole bytes also of 6 bits
    for (const int64_t size : entry.shape) numel *= size;
    entry.begin = next;
    entry.end = next += numel * safetensors_dtype_bits(entry.dtype) / 8;
    entries.push_back(entry);
  }
  return entries;
}

TEST(Safetensors, ReadsWhatItMakes) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    const std::vector<SafetensorsEntry> entries = random_entries(random);
    Metadata metadata;
    for (uint64_t i = random() % 4; i > 0; --i) metadata[concat("key \"", i)] = random() % 2 ? "välue\t" : "";
    const int64_t alignment = int64_t{8} << random() % 10;
    const std::string header = make_safetensors_header(entries, metadata, alignment);
    const int64_t data_bytes = entries.empty() ? 0 : entries.back().end;
    EXPECT_EQ(int64_t(header.size()) % alignment, 0);
    EXPECT_LT(int64_t(header.size()), int64_t(make_safetensors_header(entries, metadata, 8).size()) + alignment);
    const SafetensorsHeader read = parse(json_of(header), data_bytes);
    EXPECT_EQ(read.data_begin, int64_t(header.size()));
    EXPECT_EQ(read.metadata, metadata);
    auto sorted = entries;  // where tensors without bytes share a place, by order
    EXPECT_EQ(read.entries.size(), sorted.size());
    for (const SafetensorsEntry& entry : sorted)
      EXPECT_EQ(std::count(read.entries.begin(), read.entries.end(), entry), 1) << entry.name;
    EXPECT_THROW(parse(json_of(header), data_bytes + 1), ValueError);
    EXPECT_THROW(parse(json_of(header), data_bytes - 1), ValueError);
  }
}

TEST(Safetensors, ReadsFiles) {
  const TemporaryDirectory root;
  const Directory directory = Directory::open(posix_io(), root.path());
  const std::vector<SafetensorsEntry> entries = {{"w", "F32", {2, 3}, 0, 24}, {"b", "I64", {}, 24, 32}};
  put(root / "file", make_safetensors_header(entries, {{"format", "pt"}}) + std::string(32, 'x'));
  const SafetensorsHeader header = read_safetensors_header(FileReader(directory, "file"));
  EXPECT_EQ(header.entries, entries);
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(header.data_begin % 64, 0);
  const std::string whole = testing::contents_of(root / "file");
  for (size_t size = 0; size < whole.size(); ++size) {
    put(root / "cut", whole.substr(0, size));
    const std::string message = message_of<ValueError>([&] { read_safetensors_header(FileReader(directory, "cut")); });
    ASSERT_NE(message.find(root / "cut"), message.npos) << size << message;
  }
}

struct Hostile {
  const char* json;
  int64_t data_bytes;
  const char* message;  // a part of it
};

TEST(Safetensors, RefusesHostileHeaders) {
  const Hostile cases[] = {
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{", 0, "not valid JSON in UTF-8 at byte 2"},
      {"{}x", 0, "not valid JSON"},
      {"{}{}", 0, "not valid JSON"},
      {"{/**/}", 0, "not valid JSON"},
      {R"({"a":1})", 0, "tensor 'a': its entry must be an object"},
      {R"({"a":null})", 0, "tensor 'a': its entry must be an object"},
      {R"({"a":[]})", 0, "tensor 'a': its entry must be an object"},
      {R"({"a":{}})", 0, "tensor 'a': it has no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a': it has no shape"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "tensor 'a': it has no data_offsets"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "the dtype 'F33' is not known"},
      {R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4, "the dtype 'f32' is not known"},
      {R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,4]}})", 4, "its dtype must be a string"},
      {R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1, "its dtype must be a string"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "its shape must be an array"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}})", 0, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}})", 1, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}})", 1, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "its shape must be an array of non-negative"},
      {R"({"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}})", 1, "not valid JSON"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1]}})", 1, "non-negative integers"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808,0],"data_offsets":[0,0]}})", 0, "is too large"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "its data_offsets have 1 numbers, must have 2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1, "its data_offsets have more than 2 numbers"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":{"0":1}}})", 1, "its data_offsets must be an array"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1, "its data_offsets must be an array"},
      // Sizes that overflow to what the offsets say.
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "does not fit 64 bits"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0, "does not fit 64 bits"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4, "does not fit 64 bits"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "no whole number of bytes"},
      // Offsets.
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
       "it begins at byte 1 of the data, must begin at 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1, "it has 1 bytes, its dtype and shape need 2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})", 2, "it has 2 bytes, its dtype and shape need 1"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,1]}})", 1, "it has 1 bytes, its dtype and shape need 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1,
       "it ends at byte 2 of the data, of which there are 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "its tensors have 2 bytes, but 3 bytes follow"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "it begins at byte 0 of the data, must begin at 1"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "tensor 'b': it begins at byte 2 of the data, must begin at 1"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[5,5]}})", 0, "it begins at byte 5"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})",
       1, "tensor 'b': it ends at byte 0, before it begins"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775807]}})", 1, "its dtype and shape need 1"},
      // The same key twice.
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0, "tensor 'a': it is there twice"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0, "tensor 'a': it is there twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "the key 'dtype' is there twice"},
      {R"({"a":{"dtype":"U8","x":1,"shape":[0],"x":1,"data_offsets":[0,0]}})", 0, "the key 'x' is there twice"},
      {R"({"__metadata__":{"k":"v","k":"v"}})", 0, "__metadata__: the key 'k' is there twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__: it is there twice"},
      {R"({"__metadata__":null,"__metadata__":{}})", 0, "__metadata__: it is there twice"},
      // Metadata.
      {R"({"__metadata__":{"k":1}})", 0, "__metadata__: the value of 'k' must be a string"},
      {R"({"__metadata__":{"k":{}}})", 0, "__metadata__: the value of 'k' must be a string"},
      {R"({"__metadata__":{"k":null}})", 0, "__metadata__: the value of 'k' must be a string"},
      {R"({"__metadata__":[]})", 0, "__metadata__: it must be an object"},
      {R"({"__metadata__":"x"})", 0, "__metadata__: it must be an object"},
      // Text.
      {"{\"\xff\":1}", 0, "not valid JSON in UTF-8"},
      {"{\"\xc0\x80\":1}", 0, "not valid JSON in UTF-8"},
      {"{\"\xed\xa0\x80\":1}", 0, "not valid JSON in UTF-8"},
      {"{\"\\ud800\":1}", 0, "not valid JSON in UTF-8"},
      {"{\"\n\":1}", 0, "not valid JSON in UTF-8"},
      {R"({"a\nb":1})", 0, "tensor 'a?b'"},
  };
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(hostile.json);
    const std::string message = message_of<ValueError>([&] { parse(hostile.json, hostile.data_bytes); });
    EXPECT_TRUE(message.starts_with("FILE is not a safetensors file that can be used: ")) << message;
    EXPECT_NE(message.find(hostile.message), message.npos) << message;
  }
  // The parser would end at a zero byte, and take the rest for nothing.
  for (const std::string& json : {std::string("{}\0", 3), std::string("{}\0\"", 4), std::string("{\0}", 3)})
    EXPECT_THROW(parse(json, 0), ValueError);
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(parse("{}", 0).entries.size(), 0u);
  EXPECT_EQ(parse("{\"__metadata__\":null}\n\t ", 0).metadata.size(), 0u);
  // Any order in the header; keys of later versions of the format; numbers without dimensions.
  const SafetensorsHeader header = parse(
      R"({"b":{"data_offsets":[1,9],"shape":[],"dtype":"F64","x":{"dtype":[1,{"y":-1.5}]}},
          "z":{"dtype":"F32","shape":[7,0],"data_offsets":[9,9]},"__metadata__":{"":""},
          "a":{"dtype":"BOOL","shape":[1,1],"data_offsets":[0,1]}})",
      9);
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0], (SafetensorsEntry{"a", "BOOL", {1, 1}, 0, 1}));
  EXPECT_EQ(header.entries[1], (SafetensorsEntry{"b", "F64", {}, 1, 9}));
  EXPECT_EQ(header.entries[2], (SafetensorsEntry{"z", "F32", {7, 0}, 9, 9}));
  EXPECT_EQ(header.metadata, (Metadata{{"", ""}}));
}

TEST(Safetensors, ClaimsOfLengthAreCheckedBeforeAnythingIsRead) {
  const auto bytes = [](uint64_t claim, int64_t file_size) {
    std::string first(8, '\0');
    std::memcpy(first.data(), &claim, 8);
    return safetensors_header_bytes(first, file_size, "FILE");
  };
  EXPECT_EQ(bytes(0, 8), 0);
  EXPECT_EQ(bytes(92, 100), 92);
  EXPECT_EQ(bytes(100'000'000, int64_t{1} << 40), 100'000'000);
  EXPECT_THROW(bytes(93, 100), ValueError);
  EXPECT_THROW(bytes(100'000'001, int64_t{1} << 40), ValueError);
  EXPECT_THROW(bytes(uint64_t{1} << 63, INT64_MAX), ValueError);
  EXPECT_THROW(bytes(~uint64_t{0}, 100), ValueError);
  EXPECT_THROW(bytes(0, 7), ValueError);
  EXPECT_THROW(safetensors_header_bytes("1234567", 100, "FILE"), ValueError);
  EXPECT_THROW(parse_safetensors_header("{}", 9, "FILE"), ValueError);
}

std::string nested(int depth) {
  const std::string arrays(size_t(depth), '['), ends(size_t(depth), ']');
  return R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":)" + arrays + ends + "}}";
}

TEST(Safetensors, DepthIsLimited) {
  EXPECT_NO_THROW(parse(nested(14), 0));  // two objects are around it
  for (const int depth : {15, 1000, 10'000'000}) {
    const std::string message = message_of<ValueError>([&] { parse(nested(depth), 0); });
    EXPECT_NE(message.find("tensor 'a': it is nested more than 16 deep"), message.npos) << message;
  }
}

TEST(Safetensors, NumberOfTensorsIsLimited) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "one thread alone works here, for a minute";
#endif
  const auto of_tensors = [](int64_t count) {
    std::string json = "{";
    for (int64_t i = 0; i < count; ++i) {
      json += i == 0 ? "\"" : ",\"";
      json += std::to_string(i) + R"(":{"dtype":"U8","shape":[],"data_offsets":[)";
      json += std::to_string(i) + "," + std::to_string(i + 1) + "]}";
    }
    return json + "}";
  };
  const int64_t most = kMaxSafetensorsEntries;
  EXPECT_EQ(parse(of_tensors(most), most).entries.size(), size_t(most));
  const std::string message = message_of<ValueError>([&] { parse(of_tensors(most + 1), most + 1); });
  EXPECT_NE(message.find("more than 1000000 tensors"), message.npos) << message;
}

TEST(Safetensors, NumbersOfDimensionsAndKeysAreLimited) {
  const auto of_dims = [](int dims) {
    std::string shape = "1";
    for (int i = 1; i < dims; ++i) shape += ",1";
    return R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
  };
  EXPECT_EQ(parse(of_dims(kMaxSafetensorsDims), 1).entries[0].shape.size(), size_t{kMaxSafetensorsDims});
  EXPECT_THROW(parse(of_dims(kMaxSafetensorsDims + 1), 1), ValueError);

  const auto of_unknown_keys = [](int keys) {
    std::string json = R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1])";
    for (int i = 0; i < keys; ++i) json += concat(",\"", i, "\":0");
    return json + "}}";
  };
  EXPECT_NO_THROW(parse(of_unknown_keys(999), 1));
  EXPECT_THROW(parse(of_unknown_keys(1001), 1), ValueError);
}

TEST(Safetensors, MutatedHeadersAreRefusedOrSound) {
  int accepted = 0;
  for (const uint64_t seed : seeds(4000)) {
    SeededRandom random(seed);
    const std::vector<SafetensorsEntry> entries = random_entries(random);
    std::string json = json_of(make_safetensors_header(entries, {{"k", "v"}}, 8));
    const int64_t data_bytes = entries.empty() ? 0 : entries.back().end;
    for (uint64_t i = 1 + random() % 3; i > 0; --i) {
      const size_t at = random() % json.size();
      const std::string piece = json.substr(random() % json.size(), random() % 20);
      switch (random() % 4) {
        case 0:
          json[at] = char(random());
          break;
        case 1:
          json.erase(at, random() % 20);
          break;
        case 2:
          json.insert(at, piece);
          break;
        default:
          json.replace(at, piece.size(), piece);
          break;
      }
      if (json.empty()) json = "{";
    }
    try {
      const SafetensorsHeader header = parse(json, data_bytes);
      int64_t next = 0;
      for (const SafetensorsEntry& entry : header.entries) {
        int64_t numel = 1;
        for (const int64_t size : entry.shape) numel *= size;
        ASSERT_EQ(entry.begin, next);
        ASSERT_EQ((entry.end - entry.begin) * 8, numel * safetensors_dtype_bits(entry.dtype));
        next = entry.end;
      }
      ASSERT_EQ(next, data_bytes);
      ++accepted;
    } catch (const ValueError&) {
    }
  }
  if (testing::asked_seed()) return;
  EXPECT_GT(accepted, 50);  // or the sample shows little
  EXPECT_LT(accepted, 3000);
}

TEST(Safetensors, MakesNothingThatItWouldRefuse) {
  const SafetensorsEntry good{"a", "U8", {1}, 0, 1};
  EXPECT_NO_THROW(make_safetensors_header({{good}}, {}));
  const SafetensorsEntry bad[] = {
      {"__metadata__", "U8", {1}, 0, 1}, {"\xff", "U8", {1}, 0, 1}, {"a", "X", {1}, 0, 1},
      {"a", "U8", {-1}, 0, 1},           {"a", "U8", {2}, 0, 1},    {"a", "U8", {1}, 1, 2},
      {"a", "U8", {1}, 0, INT64_MAX},    {"a", "U8", {1}, -1, 0},
  };
  for (const SafetensorsEntry& entry : bad) EXPECT_THROW(make_safetensors_header({{entry}}, {}), ValueError);
  const std::string message = message_of<ValueError>([&] { make_safetensors_header({{bad[0]}}, {}); });
  EXPECT_NE(message.find("'__metadata__' cannot be the name of a tensor"), message.npos) << message;
  const SafetensorsEntry twice[] = {good, {"a", "U8", {1}, 1, 2}};
  EXPECT_THROW(make_safetensors_header(twice, {}), ValueError);
  EXPECT_THROW(make_safetensors_header({{good}}, {{"\xff", ""}}), ValueError);
  for (const int64_t alignment : {-64, 0, 4, 12, 100})
    EXPECT_THROW(make_safetensors_header({{good}}, {}, alignment), ValueError);
}

}  // namespace
}  // namespace zeroshard
