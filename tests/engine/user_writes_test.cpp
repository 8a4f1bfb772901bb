#include "engine/user_writes.h"

#include "engine/parts.h"

namespace zeroshard::test {
namespace {

using Purpose = HeldValues::Purpose;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct WriteParts : Foundation {
  using Foundation::Foundation;

  at::Tensor written(size_t unit, size_t index) const { return param(unit, index).detach(); }
  double first() {  // of the first unit's first parameter
    executor->hold(0);
    const double value = param(0, 0).detach().view({-1})[0].item<double>();
    executor->release(0);
    return value;
  }
  float first_master() const {  // of this rank's shard
    const ParamSlice slice = slices(*memory.groups->trained().front()).front();
    return slice.master.view({-1})[0].item<float>();
  }

  UserWrites writes{ranks, memory, *executor, optimizer};
};

// What is only possible where parameters are whole between passes.
void run_replicated(const std::function<void(WriteParts&)>& body) {
  for (const int stage : {0, 1, 2})
    EXPECT_THAT(run_parts<WriteParts>(make_scenario(2, stage), body), Each(std::string())) << "stage " << stage;
}

// With parameters in 16 bits, so that there are master weights.
void run_narrow(const std::vector<int>& stages, const std::function<void(WriteParts&)>& body) {
  for (const int stage : stages) {
    Scenario scenario = make_scenario(2, stage);
    scenario.config.compute_dtype = DType::kBFloat16;
    EXPECT_THAT(run_parts<WriteParts>(scenario, body), Each(std::string())) << "stage " << stage;
  }
}

TEST(UserWrites, FindsNoneIfThereAreNone) {
  run_everywhere<WriteParts>([](WriteParts& parts) {
    const at::Tensor before = parts.values();
    EXPECT_FALSE(parts.writes.any_written());
    for (int twice = 0; twice < 2; ++twice) parts.writes.take_all();
    for (int twice = 0; twice < 2; ++twice) parts.writes.forget_held();
    parts.writes.check_no_change_begun("step()");
    EXPECT_FALSE(parts.writes.wrote_late());
    parts.writes.check_late();
    EXPECT_TRUE(parts.values().equal(before));
  });
}

TEST(UserWrites, TakesTheSameWriteOfAllRanks) {
  run_narrow({0, 1, 2}, [](WriteParts& parts) {
    parts.written(0, 0).fill_(3);
    EXPECT_TRUE(parts.writes.any_written());
    parts.writes.take_all(UserWrites::OfMaster::kNone);
    EXPECT_FALSE(parts.writes.any_written());
    EXPECT_NE(parts.first_master(), 3);
    parts.writes.take_all();
    EXPECT_EQ(parts.first(), 3);
    EXPECT_EQ(parts.first_master(), 3);
  });
}

TEST(UserWrites, RefusesAWriteOfOneRankOnAllRanks) {
  run_replicated([](WriteParts& parts) {
    if (parts.rank() == 1) parts.written(2, 1).fill_(3);
    for (int twice = 0; twice < 2; ++twice)  // until the ranks agree again
      EXPECT_THAT([&] { parts.writes.take_all(); }, ThrowsMessage<std::exception>(HasSubstr("units.2.1")));
    parts.written(2, 1).fill_(4);
    parts.writes.take_all();
    EXPECT_FALSE(parts.writes.any_written());
  });
}

TEST(UserWrites, TakesMemoryThatAllRanksGiveToAParameter) {
  run_replicated([](WriteParts& parts) {
    parts.param(1, 1).set_data(at::full(parts.param(1, 1).sizes(), 7.F));
    parts.writes.take_all();
    EXPECT_EQ(parts.param(1, 1).min().item<float>(), 7);
    EXPECT_TRUE(parts.executor->unit(1).owns(parts.param(1, 1)));
  });
}

TEST(UserWrites, RefusesMemoryOfAnotherShape) {
  run_replicated([](WriteParts& parts) {
    parts.param(1, 1).set_data(at::full({2}, 7.F));
    EXPECT_THAT([&] { parts.writes.take_all(); }, ThrowsMessage<StateError>(HasSubstr("another shape")));
  });
}

TEST(UserWrites, GivesAllRanksWhatOneRankWritesToGatheredParameters) {
  run_narrow({0, 1, 2, 3}, [](WriteParts& parts) {
    const int root = parts.ranks.all.world_size() - 1;
    for (const double value : {5.0, 6.0}) {
      parts.writes.gather({0, 1}, Purpose::kModify);
      EXPECT_THAT([&] { parts.writes.check_no_change_begun("step()"); },
                  ThrowsMessage<StateError>(HasSubstr("step()")));
      if (parts.rank() == root) parts.written(0, 0).fill_(value);
      parts.writes.release({0, 1}, root);
      parts.writes.check_no_change_begun("step()");
      EXPECT_EQ(parts.first(), value);
      EXPECT_EQ(parts.first_master(), float(value));
      EXPECT_FALSE(parts.writes.any_written());
    }
  });
}

TEST(UserWrites, RefusesWritesToParametersThatAreReadOrDropped) {
  run_everywhere<WriteParts>([](WriteParts& parts) {
    const double before = parts.first();
    parts.writes.gather({0}, Purpose::kReadAndDrop);
    parts.written(0, 0).fill_(9);
    parts.writes.release({0}, Engine::kDropWrites);
    EXPECT_EQ(parts.first(), before);
    parts.writes.gather({0}, Purpose::kRead);
    parts.writes.gather({0}, Purpose::kRead);
    parts.written(0, 0).fill_(9);
    for (int reading = 0; reading < 2; ++reading)
      EXPECT_THAT([&] { parts.writes.release({0}, Engine::kReadOnly); },
                  ThrowsMessage<StateError>(HasSubstr("'units.0.0' was written inside")));
  });
}

TEST(UserWrites, RefusesAReleaseWithoutItsGather) {
  run_everywhere<WriteParts>([](WriteParts& parts) {
    const auto refuses = [&](const std::vector<size_t>& units) {
      EXPECT_THAT([&] { parts.writes.release(units, Engine::kReadOnly); },
                  ThrowsMessage<StateError>(HasSubstr("unit 'unit 0' is released more often than it was gathered")));
    };
    const double value = parts.first();
    refuses({0});
    parts.writes.gather({0, 1}, Purpose::kRead);
    refuses({1, 0, 0});
    EXPECT_EQ(parts.param(0, 0).detach().view({-1})[0].item<double>(), value);  // still gathered
    parts.writes.release({0, 1}, Engine::kReadOnly);
    refuses({0});
    EXPECT_EQ(parts.first(), value);
  });
}

TEST(UserWrites, RefusesOnceWhatAPendingUpdateWouldOverwrite) {
  run_replicated([](WriteParts& parts) {
    parts.writes.remember_open_parameters();
    EXPECT_FALSE(parts.writes.wrote_late());
    if (parts.rank() == 1) parts.written(0, 0).fill_(3);
    EXPECT_EQ(parts.writes.wrote_late(), parts.rank() == 1);
    EXPECT_THAT([&] { parts.writes.check_late(); }, ThrowsMessage<StateError>(HasSubstr("between two steps")));
    parts.writes.check_late();
    parts.writes.lose_sums();
    EXPECT_TRUE(parts.writes.wrote_late());
    parts.writes.remember_open_parameters();
    EXPECT_FALSE(parts.writes.wrote_late());
  });
}

}  // namespace
}  // namespace zeroshard::test
