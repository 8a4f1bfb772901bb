#include "support/mutation.h"
#include "support.h"

namespace zeroshard {
namespace {

using testing::asked_seed;
using testing::mutated;
using testing::SeededRandom;
using testing::seeds;

constexpr std::string_view kAlphabet = "{}[]\",:/*#\\ \n0123456789-+.eEtrufalsnIy\xff\x01";

const std::vector<std::string>& texts() {
  static const std::vector<std::string> kTexts{
      R"({"train_batch_size": 16, "gradient_accumulation_steps": 2, "steps_per_print": Infinity, // comment
          "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 3686.4,},
          "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}, /* and */ "gradient_clipping": 1.0})",
      R"({"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
          "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}},
          "zero_optimization.stage": 2, "zeroshard": {"unit_classes": ["A", "\u00e9\\\"b"]}})",
      R"({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"reduce_bucket_size": "auto"}, # x
          "elasticity": {"enabled": false, "a": [[[1, -2, 3e-7]], {"b": null}]}, "amp": {"enabled": "auto"}})",
  };
  return kTexts;
}

// Whatever the text: a result or a ConfigError, nothing else.
TEST(ConfigMutation, BrokenTextsGiveConfigErrors) {
  ConfigContext context = ranks(2);
  context.hidden_size = 64;
  int accepted = 0, refused = 0;
  for (const uint64_t seed : seeds(3000)) {
    SeededRandom random(seed);
    const std::string text = mutated(texts()[seed % texts().size()], kAlphabet, random);
    SCOPED_TRACE(text);
    try {
      parse_config(text, context);
      ++accepted;
    } catch (const ConfigError&) {
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not a ConfigError: " << error.what();
    }
  }
  if (asked_seed()) return;
  EXPECT_GT(accepted, 30);
  EXPECT_GT(refused, 300);
}

TEST(ConfigMutation, TheSeedsAreValid) {
  ConfigContext context = ranks(2);
  context.hidden_size = 64;
  for (const std::string& text : texts()) EXPECT_EQ(error_of(text, context), "");
}

}  // namespace
}  // namespace zeroshard
