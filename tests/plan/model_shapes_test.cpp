#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan_ledger.h"
#include "zeroshard/error.h"
#include "zeroshard/plan.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSmallLlama = R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 24,
  "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})";

std::string error_of(const std::string& json) {
  try {
    parse_model_shapes(json, "config.json");
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelShapes, UnitsOfLlama) {
  const ModelShapes model = parse_model_shapes(kSmallLlama, "config.json");
  ASSERT_EQ(model.units.size(), 5u);
  EXPECT_EQ(model.units[0].name, "model.embed_tokens");
  EXPECT_EQ(model.units[2].name, "model.layers.1");
  EXPECT_EQ(model.units[3].name, "model.norm");
  EXPECT_EQ(model.units[4].name, "lm_head");
  EXPECT_THAT(model.units[2].params[1].names, ElementsAre("model.layers.1.self_attn.k_proj.weight"));
  EXPECT_THAT(model.units[2].params[1].shape, ElementsAre(12, 24));
  EXPECT_EQ(model.hidden_size, 24);
  EXPECT_TRUE(model.notes.empty());
}

TEST(ModelShapes, TiedHeadIsOneEntryWithTwoNames) {
  std::string json = kSmallLlama;
  json.insert(json.size() - 1, R"(, "tie_word_embeddings": true)");
  const ModelShapes model = parse_model_shapes(json, "config.json");
  EXPECT_EQ(model.units.size(), 4u);
  EXPECT_THAT(model.units[0].params[0].names, ElementsAre("model.embed_tokens.weight", "lm_head.weight"));
}

// Published sizes: 6 738 415 616, 124 439 808 and 46 702 792 704 parameters.
TEST(ModelShapes, PublishedParameterCounts) {
  EXPECT_EQ(parse_model_shapes(R"({"model_type": "llama"})", "").numel(), 6'738'415'616);
  EXPECT_EQ(parse_model_shapes(R"({"model_type": "gpt2"})", "").numel(), 124'439'808);
  EXPECT_EQ(parse_model_shapes(R"({"model_type": "mixtral"})", "").numel(), 46'702'792'704);
}

TEST(ModelShapes, AbsentFieldsAreNoted) {
  const ModelShapes model = parse_model_shapes(R"({"model_type": "llama", "hidden_size": 64})", "");
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_THAT(model.notes[0], HasSubstr("intermediate_size = 11008"));
  EXPECT_THAT(model.notes[0], ::testing::Not(HasSubstr("hidden_size = ")));
}

TEST(ModelShapes, BadConfigsAreErrorsThatSayWhy) {
  EXPECT_THAT(error_of(std::string(kSmallLlama).substr(0, 60)), HasSubstr("config.json is not valid JSON"));
  EXPECT_THAT(error_of(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("JSON object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("model_type"));
  EXPECT_THAT(error_of(R"({"model_type": 3})"), HasSubstr("model_type"));
  EXPECT_THAT(error_of(R"({"model_type": "mamba"})"), HasSubstr("\"mamba\" cannot be planned"));
  EXPECT_THAT(error_of(R"({"model_type": "mamba"})"), HasSubstr("llama, mistral, qwen2, qwen3, gemma2, mixtral, gpt2"));
  for (const char* value : {"0", "-4", "2.5", "\"64\"", "null", "true", "1e30", "18446744073709551615"}) {
    EXPECT_THAT(error_of(std::string(R"({"model_type": "llama", "hidden_size": )") + value + "}"),
                HasSubstr("\"hidden_size\" must be a whole number"))
        << value;
  }
  EXPECT_THAT(error_of(R"({"model_type": "llama", "tie_word_embeddings": 1})"), HasSubstr("true or false"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "hidden_size": 4})"), HasSubstr("num_attention_heads"));
  EXPECT_THAT(error_of(R"({"model_type": "gpt2", "add_cross_attention": true})"), HasSubstr("add_cross_attention"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "hidden_size": 1000000000, "intermediate_size": 1000000000})"),
              HasSubstr("more than"));
}

TEST(ModelShapes, HeadsThatDoNotDivideAreNamed) {
  const auto with = [](const std::string& more) {
    return error_of(std::string(kSmallLlama).substr(0, std::string(kSmallLlama).size() - 1) + ", " + more + "}");
  };
  EXPECT_EQ(with(R"("num_key_value_heads": 3)"),
            "config.json: \"num_key_value_heads\" is 3 and must divide \"num_attention_heads\", which is 4");
  EXPECT_EQ(with(R"("num_key_value_heads": 8)"),
            "config.json: \"num_key_value_heads\" is 8 and must divide \"num_attention_heads\", which is 4");
  EXPECT_EQ(with(R"("num_attention_heads": 10, "num_key_value_heads": 5)"),
            "config.json: \"num_attention_heads\" is 10 and must divide \"hidden_size\", which is 24");
  EXPECT_EQ(with(R"("num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 8)"), "");
  EXPECT_EQ(error_of(R"({"model_type": "gpt2", "n_head": 7})"),
            "config.json: \"n_head\" is 7 and must divide \"n_embd\", which is 768");
}

TEST(ModelShapes, MissingFile) {
  EXPECT_THROW(load_model_shapes("/nonexistent/model"), ValueError);
}

TEST(ModelShapes, PlanOfAModelIsTheLedgerOfItsLayouts) {
  const ModelShapes model = parse_model_shapes(kSmallLlama, "config.json");
  PlanOptions options;
  options.world_size = 3;
  options.stage = 3;
  options.persistence_threshold = 1000;
  const PlannedBytes planned = plan_model(model, options);
  EXPECT_EQ(planned.total(), double(plan_ledger(make_unit_layouts(model, options), options).bytes.total()));
  EXPECT_GT(planned.gather_ring, 0);
  EXPECT_EQ(init_extra_bytes(model, options), 4 * 6 * 1024);  // a layer: 2 * 24 * 24 + 2 * 24 * 12 + ... < 6 blocks
}

TEST(Quantities, ParamCounts) {
  EXPECT_EQ(parse_param_count("7.5e9"), 7'500'000'000);
  EXPECT_EQ(parse_param_count("7.5B"), 7'500'000'000);
  EXPECT_EQ(parse_param_count("1.1b"), 1'100'000'000);
  EXPECT_EQ(parse_param_count("1T"), 1'000'000'000'000);
  EXPECT_EQ(parse_param_count("124439808"), 124'439'808);
  for (const char* text : {"", "-1", "0", "7.5", "7.5x", "1e15", "nan", "inf", "1e400", "B", "7 5", "0x10", "1e-3"}) {
    EXPECT_THROW(parse_param_count(text), ValueError) << text;
  }
}

TEST(Quantities, Bytes) {
  EXPECT_EQ(parse_bytes("24GB"), 24e9);
  EXPECT_EQ(parse_bytes("24e9"), 24e9);
  EXPECT_EQ(parse_bytes("22.5 GiB"), 22.5 * 1024 * 1024 * 1024);
  EXPECT_EQ(parse_bytes("80gb"), 80e9);
  for (const char* text : {"", "-1GB", "0", "24XB", "GB", "nan", "inf", "24GB!"}) {
    EXPECT_THROW(parse_bytes(text), ValueError) << text;
  }
}

}  // namespace
}  // namespace zeroshard
