#include "config/json_text.h"

#include "support.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

TEST(JsonText, CommentsAndTrailingCommas) {
  const Json json = read_json(R"(# a comment
    { // one
      "a": [1, 2, /* , ] */ ],
      "b": {"c": "x",},  # "not": "this"
    } // end)");
  EXPECT_EQ(json.dump(), R"({"a":[1,2],"b":{"c":"x"}})");
}

TEST(JsonText, StringsKeepWhatLooksLikeAComment) {
  const Json json = read_json(R"({"path": "http://host/#a", "text": "a \" // b, ]", "end": "\\"})");
  EXPECT_EQ(json["path"], "http://host/#a");
  EXPECT_EQ(json["text"], "a \" // b, ]");
  EXPECT_EQ(json["end"], "\\");
}

TEST(JsonText, PythonsInfinityAndNaN) {
  const Json json = read_json(R"({"a": Infinity, "b": -Infinity, "c": NaN, "d": -1, "e": 1e-3, "f": true})");
  EXPECT_EQ(json.dump(), R"({"a":"Infinity","b":"-Infinity","c":"NaN","d":-1,"e":0.001,"f":true})");
}

TEST(JsonText, OnlyACommaAfterAValueIsDropped) {
  for (const char* text : {"[,]", "{,}", "[1,,]", "{\"a\":,}", "[1,],", ",", "[,1]", "{\"a\" 1}", "{1: 2}"}) {
    SCOPED_TRACE(text);
    EXPECT_THROW(read_json(text), ConfigError);
  }
}

TEST(JsonText, SyntaxErrorsNameLineAndColumn) {
  expect_error("{\n  // comment\n  \"a\": 1\n  \"b\": 2\n}", {"line 4, column 5"});
  expect_error("{\"a\": flase}", {"line 1"});
  expect_error("{\n\"a\": \"open\n}", {"line 2, column 6", "string without an end"});
  expect_error("{\n/* open", {"line 2, column 1", "comment without an end"});
  expect_error("", {"line 1"});
  expect_error("{\"a\": 'b'}", {"line 1, column 7"});
}

TEST(JsonText, AKeyGivenTwiceIsAnError) {
  expect_error(R"({"train_batch_size": 1, "train_batch_size": 2})", {"train_batch_size: this key is given twice"});
  expect_error(R"({"fp16": {"enabled": true, "loss_scale": 1, "enabled": true}})", {"fp16.enabled", "twice"});
  expect_error(R"({"a": [{}, {"x": 1, "x": 1}]})", {"a[1].x: this key is given twice"});
  EXPECT_NO_THROW(read_json(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 1}]})"));
}

TEST(JsonText, RefusesWhatIsTooDeep) {
  const std::string deepest = std::string(kMaxConfigDepth, '[') + std::string(kMaxConfigDepth, ']');
  EXPECT_NO_THROW(read_json(deepest));
  EXPECT_THROW(read_json("[" + deepest + "]"), ConfigError);
  EXPECT_THROW(read_json(std::string(100'000, '[')), ConfigError);
}

TEST(JsonText, RefusesWhatIsTooLong) {
  EXPECT_NO_THROW(read_json("{}" + std::string(kMaxConfigBytes - 2, ' ')));
  EXPECT_THROW(read_json("{}" + std::string(kMaxConfigBytes - 1, ' ')), ConfigError);
}

TEST(JsonText, RefusesBrokenUtf8AndHugeNumbers) {
  EXPECT_THROW(read_json("{\"a\": \"\xff\xfe\"}"), ConfigError);
  EXPECT_THROW(read_json("{\"a\": 1e999}"), ConfigError);
}

TEST(JsonText, NumbersThatAreTooLargeAreNamed) {
  const char* const lr = R"({"fp16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e400}}})";
  expect_error(lr, {"optimizer.params.lr = 1e400: ", "too large"});
  expect_error(R"({"a": [[1, 2], {"b": []}, {"c": [0.5, {"d": 3}, -1e999]}]})", {"a[2].c[2] = -1e999: "});
  expect_error("1e400", {"the configuration = 1e400: "});
  const std::string message = error_of("{\"a\": 1" + std::string(1000, '0') + "}");
  EXPECT_THAT(message, HasSubstr("a = 1000"));
  EXPECT_LT(message.size(), 200u);
}

TEST(JsonText, LongValuesAreCutInMessages) {
  EXPECT_LE(shown(Json(std::string(1000, 'x'))).size(), 80u);
  EXPECT_EQ(shown(Json(3)), "3");
}

}  // namespace
}  // namespace zeroshard
