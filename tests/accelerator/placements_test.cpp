// What training keeps in every placement: the bits of the CPU, the planned memory, and no wait that is missing.
#include "accelerator/placements.h"

#include <filesystem>
#include <limits>

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;
using ::testing::Each;

INSTANTIATE_TEST_SUITE_P(States, Placements, placement_cases([](const PlaceCase& of) {
                           return !of.place.has_offloaded_parameters() && of.place.moments == DType::kFloat32;
                         }),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Parameters, Placements, placement_cases([](const PlaceCase& of) {
                           return of.place.has_offloaded_parameters() && !of.place.is_shared();
                         }),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(SharedParameters, Placements, placement_cases([](const PlaceCase& of) {
                           return of.place.has_offloaded_parameters() && of.place.is_shared();
                         }),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(NarrowMoments, Placements,
                         placement_cases([](const PlaceCase& of) { return of.place.moments != DType::kFloat32; }),
                         name_of_case);

class PlacementsInMemory : public Placements {};
INSTANTIATE_TEST_SUITE_P(Memory, PlacementsInMemory,
                         placement_cases([](const PlaceCase& of) { return !of.place.has_files(); }), name_of_case);

class SharedPlacements : public Placements {};
INSTANTIATE_TEST_SUITE_P(Shares, SharedPlacements,
                         placement_cases([](const PlaceCase& of) { return of.place.is_shared(); }), name_of_case);

class LazySharesOnHost : public Placements {};
INSTANTIATE_TEST_SUITE_P(Shares, LazySharesOnHost, placement_cases([](const PlaceCase& of) {
                           return of.place.is_shared() && !of.place.has_files() && of.schedule == Schedule::kLazy;
                         }),
                         name_of_case);

// The host updates parameters that stay on the device.
class UpdatesByTheHost : public Placements {};
INSTANTIATE_TEST_SUITE_P(Memory, UpdatesByTheHost, placement_cases([](const PlaceCase& of) {
                           return of.place.states == OffloadDevice::kCpu && !of.place.is_shared() &&
                                  !of.place.has_offloaded_parameters();
                         }),
                         name_of_case);

class ParametersInFiles : public Placements {};
INSTANTIATE_TEST_SUITE_P(Files, ParametersInFiles, placement_cases([](const PlaceCase& of) {
                           return of.place.parameters == OffloadDevice::kNvme && of.place.moves_parameters(of.dtype);
                         }),
                         name_of_case);

void expect_all_in_place(const Place& place, DType dtype, const Result& result, const Result& expected) {
  const auto all = [&](const std::string& category) { return planned(expected, category); };
  const int64_t moved = planned(result, "moments", tier_of(place.states));
  if (place.moments == DType::kFloat32) {
    EXPECT_GE(double(moved), place.ratio * double(all("moments")));
    EXPECT_EQ(planned(result, "moments"), all("moments"));
    EXPECT_EQ(moved < all("moments"), place.is_shared());
  } else {
    EXPECT_GT(moved, 0);  // small parameters have fp32 moments, which stay in memory
  }
  const int64_t masters = planned(result, "master weights", tier_of(place.states));
  if (dtype != DType::kFloat32) {
    EXPECT_EQ(masters < all("master weights"), place.is_shared());
    EXPECT_EQ(planned(result, "master weights"), all("master weights"));
  } else {  // fp32 parameters are their own master weights, unless the states lie elsewhere
    EXPECT_EQ(masters > 0, place.has_offloaded_states() && !place.moves_parameters(dtype));
  }
  const bool moves = place.moves_parameters(dtype);
  EXPECT_EQ(planned(result, "parameters"), all("parameters"));
  EXPECT_EQ(planned(result, "parameters", "device"), moves ? 0 : all("parameters"));
  if (moves) {
    EXPECT_GT(planned(result, "parameters", tier_of(place.parameters)), 0);
    if (place.parameters == OffloadDevice::kNvme) {
      EXPECT_EQ(planned(result, "parameters", "host") > 0, place.max_in_memory > 0);
      EXPECT_LE(planned(result, "parameters", "host"), place.max_in_memory * element_size(dtype));
    }
  }
  using Gradients = OffloadConfig::Gradients;
  const bool stay = !place.has_offloaded_states() || place.is_shared() || place.gradients == Gradients::kDevice;
  const std::string gradients = stay ? "device" : place.gradients == Gradients::kNvme ? "file" : "host";
  EXPECT_GT(planned(result, "gradients", gradients), 0);
  EXPECT_EQ(planned(result, "gradients"), planned(result, "gradients", gradients));
  if (stay && place.has_offloaded_states()) {
    EXPECT_GT(planned(result, "pinned", "host"), 0);  // gradients come to the host
  }
  if (moves && !stay) {
    EXPECT_EQ(planned(result, "pinned", "host"), 0);  // nothing is copied back
  }
}

TEST_P(Placements, GiveTheSameBitsInThePlannedMemory) {
  const Result result = expect_the_same_bits(scenario());
  expect_all_in_place(place(), GetParam().dtype, result, test::train(scenario()));
  for (const auto* const directory : {&directory_, &other_})
    EXPECT_TRUE(std::filesystem::is_empty(directory->path()));  // swap files have no names
  if (place().moments == DType::kBFloat16) return;              // a device does not have them
  const Result without = test::train(on_devices(scenario()));
  for (size_t step = 0; step < result.steps.size(); ++step)
    EXPECT_EQ(result.steps[step].grad_norm, without.steps.at(step).grad_norm) << step;
}

TEST_P(Placements, AccumulateGradients) {
  for (const Scenario& each : accumulating(scenario())) expect_the_same_bits(each);
}

// Each sum of micro-batches is rounded.
TEST_P(Placements, AccumulateGradientsIn16Bits) {
  Scenario rounded = scenario(DType::kBFloat16);
  rounded.steps = 2;
  rounded.config.grad_accumulation_steps = 3;
  rounded.config.grad_accum_dtype = DType::kBFloat16;
  expect_the_same_bits(rounded);
}

// In fp16, where rank 0 has an infinite gradient in one step. The simulated device lacks an operator that names it.
TEST_P(Placements, SkipStepsThatOverflow) {
  Scenario overflowing = scenario(DType::kFloat16);
  overflowing.config.fp16.enabled = true;
  overflowing.config.fp16.initial_scale_power = 4;
  overflowing.config.fp16.hysteresis = 1;
  overflowing.input_scale = [](int rank, int step) {
    return rank == 0 && step == 1 ? std::numeric_limits<float>::infinity() : 1;
  };
  const Result expected = test::train(overflowing), result = test::train(placed(overflowing));
  ASSERT_FALSE(HasFailure());
  EXPECT_FALSE(result.steps[1].applied);
  EXPECT_TRUE(result.steps[2].applied);
  EXPECT_TRUE(result.values.equal(expected.values));
}

// Small units and those of a rule stay on the device. Frozen parameters leave it, and so do those that no forward
// reads.
TEST_P(Placements, HaveUnitsOfAllKindsBesideEachOther) {
  Scenario mixed = scenario();
  mixed.model.frozen = mixed.model.unused = true;
  if (stage() == 3) {
    mixed.config.persistence_threshold = 1500;  // the head
    mixed.config.placement = {{"unit 3", /*replicated=*/true}};
  }
  const Result result = expect_the_same_bits(mixed);
  EXPECT_GT(planned(result, "parameters", "device"), 0);
}

TEST_P(Placements, HaveUnitsThatRanksLeaveOut) {
  Scenario leaves_out = scenario();
  leaves_out.model.unused = true;
  leaves_out.steps = 5;
  leaves_out.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
  expect_the_same_values(leaves_out, [](test::Rank& rank) { rank.train(); });
  leaves_out.skip = {};
  leaves_out.counts_aside = [](int rank, int step) { return (rank + step) % 2 == 0; };
  expect_the_same_values(leaves_out, [](test::Rank& rank) { rank.train(); });
}

TEST_P(Placements, HaveUnitsThatStayWholeAndShardsOfOneRank) {
  Scenario whole = scenario();
  whole.config.persistence_threshold = 1'000'000;
  expect_the_same_bits(whole);
  Scenario shards = scenario();
  shards.config.shard_one_rank = true;
  expect_the_same_bits(shards);
}

// Frozen fp32 parameters leave the device also where others stay beside their states.
TEST_P(Placements, HaveFrozenParameters) {
  Scenario frozen = scenario();
  frozen.model.frozen_ballast = true;
  const Result result = expect_the_same_bits(frozen);
  EXPECT_GT(planned(result, "parameters", tier_of(place().parameters)), 0);
}

// The states are master weights alone, or other moments.
TEST_P(Placements, HaveOtherOptimizers) {
  using Type = OptimizerConfig::Type;
  const bool are_narrow = place().moments != DType::kFloat32;
  for (const Type type : {Type::kSgd, Type::kLion, Type::kAdagrad}) {
    Scenario other = scenario();
    other.config.optimizer->type = type;
    other.config.optimizer->momentum = type == Type::kSgd && are_narrow ? 0.9 : 0;
    expect_the_same_bits(other);
  }
}

TEST_P(Placements, RunWithoutPrefetchAndOverlap) {
  Scenario plain = scenario();
  plain.config.prefetch_numel = 0;
  plain.config.overlap_comm = false;
  expect_the_same_bits(plain);
}

// At the borders of blocks, and where a group has fewer elements than one: from one block to all.
TEST_P(SharedPlacements, HaveBordersAtTheFirstAndTheLastBlock) {
  Place other = place();
  for (const double ratio : {0.0001, 0.9}) {
    other.ratio = ratio;
    const Result expected = test::train(scenario()), result = test::train(placed(scenario(), other));
    ASSERT_FALSE(HasFailure());
    EXPECT_TRUE(result.values.equal(expected.values)) << ratio;
    expect_as_planned(scenario(), result);
  }
}

// Large units: buffers of pieces, of which a shard may have several, and slots of rings are used again, while their
// last users may still be busy.
TEST_P(Placements, UseBuffersAgain) {
  Scenario large = scenario();
  large.model.ballast = ranks() == 1 ? int64_t{9} << 19 : int64_t{1} << 17;
  large.steps = 2;
  expect_the_same_values(large, [](test::Rank& rank) { train_without_waits(rank, {}); });
}

// The host waits once in a step, for the agreement of the ranks: from the first forward to this agreement it waits for
// nothing, and neither does it from there to the next forward. Each update writes where nobody reads any more.
TEST_P(PlacementsInMemory, LetTheHostWaitForTheAgreementAlone) {
  Scenario accumulates = placed(scenario());
  accumulates.config.grad_accumulation_steps = 2;
  test::ThreadWorld world(accumulates);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int warm = 0; warm < 2; ++warm) rank.train_step(warm);
    const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), 2, 0);
    const int64_t before = Streams::host_waits_of_this_thread();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 2, batch, rank.engine.get()));
    }
    EXPECT_EQ(Streams::host_waits_of_this_thread() - before, 0);
    const StepResult result = rank.engine->prepare_step();
    EXPECT_EQ(Streams::host_waits_of_this_thread() - before, 1);
    EXPECT_TRUE(result.applied);
  });
  EXPECT_THAT(errors, Each(""));
}

// Where memory cannot be pinned, and where it shall not be.
TEST_P(Placements, GiveTheSameBitsWithoutPinnedMemory) {
  const Scenario pinned = placed(scenario());
  Scenario pageable = pinned;
  pageable.config.offload_param.pin_memory = pageable.config.offload_optimizer.pin_memory = false;
  const Result expected = test::train(pinned);
  refuse_to_pin(true);
  const Result refused = test::train(pinned);
  refuse_to_pin(false);
  const int64_t bytes = pinned_bytes();
  const Result not_asked = test::train(pageable);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(pinned_bytes(), bytes);
  EXPECT_TRUE(expected.values.equal(refused.values));
  EXPECT_TRUE(expected.values.equal(not_asked.values));
}

// By LibTorch's operations, whose results differ in the last bits, and which may wait.
TEST_P(Placements, WorkOnDevicesWithoutKernels) {
  must_not_wait_ = false;
  const Result expected = test::train(scenario());
  use_own_kernels(false);
  const Result result = test::train(placed(scenario()));
  use_own_kernels(true);
  ASSERT_FALSE(HasFailure());
  const float most = GetParam().dtype == DType::kFloat32 ? 1e-4F : 1e-2F;
  EXPECT_LE((expected.values - result.values).abs().max().item<float>(), most);
  EXPECT_THAT(Streams::get().races().found(), ::testing::IsEmpty());
}

// A part of the parameters stays on the host, as large as the limit.
TEST_P(ParametersInFiles, StayOnTheHostUpToALimit) {
  Place limited = place();
  int64_t before = -1;
  for (const int64_t most : {0, 30'000, 1'000'000}) {
    limited.max_in_memory = most;
    const Result result = expect_bits_of(scenario(), placed(scenario(), limited));
    const int64_t on_host = planned(result, "parameters", "host");
    EXPECT_LE(on_host, most * element_size(GetParam().dtype));
    EXPECT_GT(on_host, before);
    before = on_host;
    EXPECT_EQ(planned(result, "parameters", "file") == 0, most == 1'000'000);
  }
}

// The device has not updated its part when the step returns.
TEST_P(LazySharesOnHost, LetTheHostUpdateWhileTheDeviceDoes) {
  test::ThreadWorld world(placed(scenario()));
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < 2; ++step) {
      rank.train_step(step);
      const int device = rank.scenario.device_of(rank.gather.rank()).index();
      EXPECT_FALSE(Streams::get().is_done(Streams::get().record({device, 0})));
    }
    rank.finish();
  });
  EXPECT_THAT(errors, Each(""));
}

// If the host updates parameters of the device, it fetches them where somebody has written to them alone. A checksum on
// the device tells.
TEST_P(UpdatesByTheHost, LeaveParametersThatNobodyWroteToOnTheDevice) {
  Scenario made = placed(scenario());
  made.steps = 4;
  std::vector<int64_t> copies;  // of all ranks, up to each step
  test::ThreadWorld world(made);
  for (int step = 0; step < made.steps; ++step) {
    const auto errors = world.run([step](test::Rank& rank) {
      at::set_num_threads(1);
      if (step == 0) rank.make_engine();
      {
        const at::NoGradGuard no_grad;
        if (step == 2 && stage() < 3) rank.model.params()[2][0].data().mul_(1.5);
      }
      rank.train_step(step);
    });
    ASSERT_THAT(errors, Each(""));
    copies.push_back(Streams::get().counts().copies);
  }
  const int64_t untouched = copies[1] - copies[0], written = copies[2] - copies[1], after = copies[3] - copies[2];
  EXPECT_EQ(after, untouched);
  EXPECT_EQ(written > untouched, stage() < 3);
}

}  // namespace
}  // namespace zeroshard::accelerator
