#include "engine/user_gradients.h"

#include "engine/parts.h"

namespace zeroshard::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct GradientParts : Foundation {
  GradientParts(Rank& rank, Comm& checkpoint) : Foundation(rank, checkpoint) {
    for (size_t u = 0; u < kUnits; ++u)
      for (size_t i = 0; i < model.params()[u].size(); ++i)
        if (param(u, i).requires_grad()) gradients.add(param(u, i), {u, i}, name_of(u, i));
  }
  static std::string name_of(size_t unit, size_t index) { return concat("units.", unit, ".", index); }
  void pass() {
    gradients.hide();
    reduce(1);
    gradients.end_pass();
  }

  UserGradients gradients{*executor, *reducer};
};

TEST(UserGradients, ShowsAStandInForEachGradientThatWaits) {
  run_everywhere<GradientParts>([](GradientParts& parts) {
    parts.gradients.show();  // nothing was reduced
    EXPECT_FALSE(parts.param(0, 0).grad().defined());
    parts.pass();
    for (const at::Tensor& tensor : parts.gradients.tensors()) EXPECT_TRUE(tensor.grad().defined());
    EXPECT_THAT([&] { parts.param(1, 0).grad().sum(); }, ThrowsMessage<std::exception>(HasSubstr("units.1.0")));
    EXPECT_EQ(parts.gradients.assigned(), "");  // stand-ins are the engine's
    parts.gradients.end_step();
    for (const at::Tensor& tensor : parts.gradients.tensors()) EXPECT_FALSE(tensor.grad().defined());
  });
}

TEST(UserGradients, NamesWhatAUserAssigns) {
  run_everywhere<GradientParts>([](GradientParts& parts) {
    EXPECT_EQ(parts.gradients.assigned(), "");
    for (int twice = 0; twice < 2; ++twice) {
      parts.pass();
      parts.param(2, 1).mutable_grad() = at::zeros(parts.param(2, 1).sizes());
      EXPECT_EQ(parts.gradients.assigned(), "units.2.1");
      parts.gradients.clear_grads();
      EXPECT_EQ(parts.gradients.assigned(), "");
      EXPECT_FALSE(parts.param(2, 1).grad().defined());
    }
  });
}

TEST(UserGradients, DropsWhatAUserRemoves) {
  run_everywhere<GradientParts>([](GradientParts& parts) {
    parts.gradients.take_dropped();  // nothing is shown
    EXPECT_THAT(parts.gradients.dropped(), IsEmpty());
    parts.pass();
    EXPECT_TRUE(parts.reducer->has_grad(3, 1));
    parts.param(3, 1).mutable_grad().reset();
    for (int twice = 0; twice < 2; ++twice) parts.gradients.take_dropped();
    EXPECT_THAT(parts.gradients.dropped(), ElementsAre("units.3.1 behind pass 1 of the step"));
    parts.pass();  // adds to the other gradients
    parts.param(0, 1).mutable_grad().reset();
    parts.pass();
    EXPECT_THAT(parts.gradients.dropped(),
                ElementsAre("units.0.1 behind pass 2 of the step", "units.3.1 behind pass 1 of the step"));
    // The elements of units.3.1 have two gradients of 1 each, those of units.0.1 one, and all others three.
    double expected = 0;
    for (size_t u = 0; u < kUnits; ++u)
      for (size_t i = 0; i < parts.model.params()[u].size(); ++i) {
        const int64_t gradient = u == 3 && i == 1 ? 2 : u == 0 && i == 1 ? 1 : 3;
        expected += double(parts.param(u, i).numel() * gradient * gradient);
      }
    EXPECT_EQ(agree_on_step(parts.ranks.all, parts.reducer->squares(), {}, {}, {}).squares, expected);
    parts.gradients.end_step();
    EXPECT_THAT(parts.gradients.dropped(), IsEmpty());
  });
}

TEST(UserGradients, EndStandInsThatAUserHasKept) {
  run_everywhere<GradientParts>([](GradientParts& parts) {
    parts.pass();
    const at::Tensor kept = parts.param(0, 0).grad();
    parts.gradients.discard();
    EXPECT_THAT([&] { kept.sum(); }, ThrowsMessage<std::exception>(HasSubstr("from before is gone")));
    parts.reducer->discard();
    parts.pass();
    parts.param(0, 0).mutable_grad() = kept;  // the old one is not the new one's stand-in
    EXPECT_EQ(parts.gradients.assigned(), "units.0.0");
  });
}

TEST(UserGradients, ForgetsAllTensors) {
  run_everywhere<GradientParts>([](GradientParts& parts) {
    parts.pass();
    for (int twice = 0; twice < 2; ++twice) parts.gradients.forget();
    EXPECT_THAT(parts.gradients.tensors(), IsEmpty());
    for (size_t i = 0; i < parts.model.params()[0].size(); ++i) EXPECT_FALSE(parts.param(0, i).grad().defined());
    parts.gradients.end_pass();  // shows nothing from now on
    EXPECT_FALSE(parts.param(0, 0).grad().defined());
  });
}

}  // namespace
}  // namespace zeroshard::test
