#include "checkpoint/plain_names.h"

#include <gtest/gtest.h>

namespace zeroshard {
namespace {

TensorRecord tensor(const std::string& name, std::vector<std::string> aliases = {},
                    const std::string& kind = "weight") {
  TensorRecord record;
  record.name = name;
  record.kind = kind;
  record.aliases = std::move(aliases);
  return record;
}

std::vector<std::vector<std::string>> plain(std::vector<TensorRecord> tensors) {
  make_names_plain(tensors);
  std::vector<std::vector<std::string>> names;
  for (const TensorRecord& each : tensors) {
    names.push_back({each.name});
    names.back().insert(names.back().end(), each.aliases.begin(), each.aliases.end());
  }
  return names;
}

using Names = std::vector<std::vector<std::string>>;

TEST(PlainNames, LeaveOutWhatTorchCompilePutsIn) {
  EXPECT_EQ(plain_name("_orig_mod.layers.0._orig_mod.weight"), "layers.0.weight");
  EXPECT_EQ(plain_name("_orig_mod._orig_mod.weight"), "weight");
  for (const std::string name :
       {"weight", "layers.0.weight", "_orig_mod", "a._orig_mod", "my_orig_mod.w", "", ".", "a..b."})
    EXPECT_EQ(plain_name(name), name);
}

TEST(PlainNames, KeepTiesAndKinds) {
  EXPECT_EQ(
      plain({tensor("_orig_mod.embed.weight", {"_orig_mod.head.weight"}),
             tensor("_orig_mod.embed.weight", {"_orig_mod.head.weight"}, "exp_avg"),
             tensor("a._orig_mod.x", {"a.x"}, "buffer"), tensor("client.a._orig_mod.x", {}, "client")}),
      (Names{{"embed.weight", "head.weight"}, {"embed.weight", "head.weight"}, {"a.x"}, {"client.a._orig_mod.x"}}));
}

TEST(PlainNames, StayApart) {
  EXPECT_EQ(plain({tensor("weight"), tensor("_orig_mod.weight"), tensor("_orig_mod.bias")}),
            (Names{{"weight"}, {"_orig_mod.weight"}, {"bias"}}));
}

}  // namespace
}  // namespace zeroshard
