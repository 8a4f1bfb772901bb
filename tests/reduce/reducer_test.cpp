#include "reduce/reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "comm/local_comm.h"
#include "device/math.h"
#include "reduce/support.h"
#include "reduce/watching_comms.h"
#include "support/comm_world.h"
#include "support/random.h"
#include "support/tree_sum.h"

namespace zeroshard {
namespace {

using testing::Random;
using testing::run_local_world;
using testing::SeededRandom;
using testing::seeds;

constexpr int kWorlds[] = {1, 2, 3, 4, 7};

// What happens in one run. Gradients are functions of (seed, rank, step, backward, unit, parameter, occurrence), so
// that every rank can compute the sum over ranks by itself.
struct Scenario {
  Reducer::Options options;
  int slots = 2;  // of each size of the ring
  PlacementOptions placement;
  uint64_t seed = 1;
  int steps = 2, backwards = 1;  // backward passes per step
  bool same_order = true;        // gradients arrive in the same order on every rank
  int skip_percent = 0;          // parameters without a gradient, drawn per rank
  bool late = false;             // some parameters get two gradients, the second after all others
  bool first_is_local = false;   // no_sync for all but the last backward pass of a step
  bool scratch = false;
  bool whole_numbers = false;  // exact sums, where the order of additions may differ from the reference's
};

std::vector<UnitLayout> model(int world_size) {
  const auto f = DType::kFloat32, b = DType::kBFloat16;
  return {unit("embed", {{{37, 31}, f}}, world_size),
          unit("mixed", {{{700}, f}, {{5, 5}, b}, {{0}, f}, {{11}, f}}, world_size),
          unit("frozen", {{{100}, f}, {{1200}, f}}, world_size, /*frozen=*/0),
          unit("block", {{{20, 40}, f}, {{300}, f}}, world_size),
          unit("twin", {{{20, 40}, f}, {{300}, f}}, world_size),  // the size class of "block"
          unit("third", {{{20, 40}, f}, {{300}, f}}, world_size),
          unit("head", {{{3000}, b}}, world_size)};
}

struct Event {
  size_t unit, param;
  int occurrence;
  bool operator==(const Event&) const = default;
};

class Script {
 public:
  Script(const Scenario& scenario, const std::vector<UnitLayout>& units) : scenario_(scenario), units_(units) {}

  at::Tensor grad(int rank, int step, int backward, const Event& event) const {
    const ParamSpec& param = units_[event.unit].params[event.param];
    Random random{key(rank, step, backward, event)};
    const at::Tensor values = at::empty(param.shape, at::kFloat);
    for (float& value : std::span(values.data_ptr<float>(), size_t(values.numel()))) {
      const auto whole = float(int64_t(random() % 33) - 16);
      value = scenario_.whole_numbers ? whole : std::ldexp(whole + 0.37F, int(random() % 20) - 10);
    }
    return values.to(to_scalar_type(param.dtype));
  }

  // The gradients of a backward pass in the order in which they arrive on `rank`.
  std::vector<Event> events(int rank, int step, int backward) const {
    std::vector<Event> result, late;
    for (size_t u = units_.size(); u-- > 0;) {
      for (size_t i = units_[u].params.size(); i-- > 0;) {
        if (!units_[u].params[i].requires_grad) continue;
        const Event event{u, i, 0};
        if (int(key(rank, step, backward, event) % 100) < scenario_.skip_percent) continue;
        result.push_back(event);
        if (scenario_.late && u % 2 == 0) late.push_back({u, i, 1});
      }
    }
    if (!scenario_.same_order) {
      Random random(scenario_.seed * 31 + uint64_t(rank));
      std::shuffle(result.begin(), result.end(), random);
    }
    result.insert(result.end(), late.begin(), late.end());
    return result;
  }

 private:
  uint64_t key(int rank, int step, int backward, const Event& event) const {
    uint64_t hash = scenario_.seed;
    for (const int64_t word : {int64_t(rank), int64_t(step), int64_t(backward), int64_t(event.unit),
                               int64_t(event.param), int64_t(event.occurrence)}) {
      hash = Random{hash ^ uint64_t(word)}();
    }
    return hash;
  }
  const Scenario& scenario_;
  const std::vector<UnitLayout>& units_;
};

// What the gradients of (unit, group) become in one step, written down without buckets: per rank packed into a wire
// buffer, summed over ranks in fp32 as a tree, rounded once per backward pass.
at::Tensor reference(const Scenario& scenario, const Script& script, const std::vector<UnitLayout>& units, size_t unit,
                     size_t group_index, int step) {
  const Reducer::Options& o = scenario.options;
  const FlatGroup& group = units[unit].groups[group_index];
  const GroupPlacement place = zeroshard::place(units, scenario.placement)[unit].groups[group_index];
  const auto wire = to_scalar_type(place.wire_dtype), kept = to_scalar_type(place.grad_dtype);
  const int64_t numel = group.layout.padded_numel();
  std::vector<at::Tensor> local(size_t(scenario.placement.world_size), at::zeros({numel}, kept));
  for (at::Tensor& tensor : local) tensor = tensor.clone();
  at::Tensor result;
  for (int backward = 0; backward < scenario.backwards; ++backward) {
    const bool sync = !scenario.first_is_local || backward + 1 == scenario.backwards;
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < scenario.placement.world_size; ++rank) {
      at::Tensor& own = local[size_t(rank)];
      const at::Tensor packed = at::zeros({numel}, wire);
      for (const Event& event : script.events(rank, step, backward)) {
        const auto place = std::find(group.params.begin(), group.params.end(), event.param);
        if (event.unit != unit || place == group.params.end()) continue;
        const Range range = group.layout.param(size_t(place - group.params.begin()));
        const at::Tensor grad = script.grad(rank, step, backward, event).reshape({-1}).to(at::kFloat) * o.pack_scale;
        const at::Tensor into = (sync ? packed : own).slice(0, range.begin, range.end);
        into.copy_(into.to(at::kFloat) + grad);
      }
      if (sync && scenario.first_is_local) packed.copy_(packed.to(at::kFloat) + own.to(at::kFloat));
      all.push_back(packed.to(at::kFloat));
    }
    if (!sync) continue;
    const at::Tensor sum = testing::tree_sum<at::Tensor>(all) * o.sum_scale;
    result = (result.defined() ? result.to(at::kFloat) + sum : sum).to(kept);
  }
  return result;
}

void check_step(const Scenario& scenario, const Script& script, const std::vector<UnitLayout>& units, Reducer& reducer,
                Comm& comm, int step) {
  ExactSum squares;
  auto bucket = reducer.buckets().begin();
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      if (!units[u].groups[g].requires_grad) continue;
      ASSERT_NE(bucket, reducer.buckets().end());
      ASSERT_EQ(&bucket->group(), &units[u].groups[g]);
      const at::Tensor whole = reference(scenario, script, units, u, g, step);
      const Range mine = units[u].groups[g].layout.shard(comm.rank());
      const at::Tensor shard = whole.slice(0, mine.begin, mine.end);
      const at::Tensor& expected = scenario.placement.stage == 0 ? whole : shard;
      EXPECT_EQ(bucket->reduced().tensor().scalar_type(), expected.scalar_type());
      EXPECT_TRUE(bucket->reduced().tensor().equal(expected))
          << units[u].name << ", rank " << comm.rank() << ", step " << step;
      math::add_sum_of_squares(shard, squares);
      for (size_t i = 0; i < units[u].groups[g].params.size(); ++i) {
        bool expected_grad = false;
        for (int backward = 0; backward < scenario.backwards; ++backward) {
          for (const Event& event : script.events(comm.rank(), step, backward)) {
            expected_grad = expected_grad || event == Event{u, units[u].groups[g].params[i], 0};
          }
        }
        EXPECT_EQ(bucket->has_grad(i), expected_grad) << units[u].name << " " << i;
      }
      ++bucket;
    }
  }
  EXPECT_EQ(bucket, reducer.buckets().end());
  EXPECT_EQ(reducer.squares().value(), squares.value());
}

// The options of a scenario, with what the plan says of rings and scratch memory.
Reducer::Options planned(const Scenario& scenario, std::span<const UnitLayout> units) {
  const std::vector<UnitPlacement> table = place(units, scenario.placement);
  Reducer::Options options = scenario.options;
  options.ring = reduce_ring(units, table);
  for (RingClass& size_class : options.ring) size_class.slots = std::min(size_class.units, scenario.slots);
  PlanOptions plan;
  static_cast<PlacementOptions&>(plan) = scenario.placement;
  plan.overlap = options.overlap;
  plan.exchange_needs_scratch = scenario.scratch && !options.native;
  options.scratch = exchange_scratch(units, table, plan);
  return options;
}

// Runs the scenario on one rank; `record` sees every step's calls.
void run_rank(const Scenario& scenario, Comm& comm, const std::function<void(int, Reducer&)>& after_step = {}) {
  const std::vector<UnitLayout> units = model(comm.world_size());
  Ledger ledger;
  Reducer reducer(units, place(units, scenario.placement), planned(scenario, units), comm, ledger);
  const Script script(scenario, units);
  for (int step = 0; step < scenario.steps; ++step) {
    for (int backward = 0; backward < scenario.backwards; ++backward) {
      const bool sync = !scenario.first_is_local || backward + 1 == scenario.backwards;
      for (const Event& event : script.events(comm.rank(), step, backward)) {
        reducer.add(event.unit, event.param, script.grad(comm.rank(), step, backward, event), sync);
      }
      reducer.end_backward(sync);
    }
    reducer.gather_reduced();
    check_step(scenario, script, units, reducer, comm, step);
    comm.barrier("checked");
    if (after_step) after_step(step, reducer);
    reducer.end_step();
  }
}

std::string text(const Scenario& s) {
  const Reducer::Options& o = s.options;
  return concat("world ", s.placement.world_size, ", stage ", s.placement.stage, ", overlap ", o.overlap, ", slots ",
                s.slots, ", seed ", s.seed, ", backwards ", s.backwards, ", scratch ", s.scratch, ", native ",
                o.native);
}

void run(const Scenario& scenario) {
  SCOPED_TRACE(text(scenario));
  const auto errors = run_local_world(scenario.placement.world_size, [&](Comm& comm) {
    ScratchComm scratch(comm);
    run_rank(scenario, scenario.scratch ? static_cast<Comm&>(scratch) : comm);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

void for_each_world_and_stage(Scenario scenario, const std::function<void(Scenario&)>& change = {}) {
  for (const int world_size : kWorlds) {
    for (const int stage : {0, 1, 2, 3}) {
      scenario.placement.world_size = world_size;
      scenario.placement.stage = stage;
      scenario.options.sum_scale = 1.0F / float(world_size);
      scenario.options.overlap = (world_size + stage) % 2 == 0;
      scenario.seed = uint64_t(world_size * 10 + stage);
      if (change) change(scenario);
      run(scenario);
    }
  }
}

TEST(Reducer, SumsInRankOrderAtEveryStage) {
  for_each_world_and_stage({});
}

TEST(Reducer, OverlapAndSlotsChangeNothing) {
  for (const bool overlap : {false, true}) {
    for (const int max_slots : {1, 2, 8}) {
      for_each_world_and_stage({}, [&](Scenario& scenario) {
        scenario.options.overlap = overlap;
        scenario.slots = max_slots;
        if (scenario.placement.stage == 1) scenario.placement.stage = 2;
        if (scenario.placement.world_size > 3) scenario.steps = 1;
      });
    }
  }
}

TEST(Reducer, GradientsMayArriveInAnotherOrderOnEachRank) {
  Scenario scenario;
  scenario.same_order = false;
  scenario.steps = 3;
  for_each_world_and_stage(scenario);
}

TEST(Reducer, ParametersWithoutAGradientCountAsZero) {
  Scenario scenario;
  scenario.skip_percent = 40;
  scenario.steps = 3;
  for_each_world_and_stage(scenario);
  scenario.same_order = false;
  for_each_world_and_stage(scenario);
  scenario.skip_percent = 100;
  for_each_world_and_stage(scenario);
}

TEST(Reducer, BackwardPassesOfAStepAreAdded) {
  Scenario scenario;
  scenario.backwards = 3;
  scenario.placement.grad_accumulation_steps = 2;
  scenario.placement.grad_dtype = DType::kFloat32;
  for_each_world_and_stage(scenario);
}

// Several backward passes though the options promised one: reduced gradients lie where the next ones are packed.
TEST(Reducer, UnannouncedBackwardPassesAreAddedToo) {
  Scenario scenario;
  scenario.backwards = 2;
  for_each_world_and_stage(scenario);
}

TEST(Reducer, LateSecondGradientsAreAdded) {
  Scenario scenario;
  scenario.late = scenario.whole_numbers = true;
  scenario.steps = 3;
  const auto exact_scale = [](Scenario& s) { s.options.sum_scale = 0.25F; };
  for_each_world_and_stage(scenario, exact_scale);
  scenario.same_order = false;
  for_each_world_and_stage(scenario, exact_scale);
  scenario.placement.grad_accumulation_steps = 2;
  scenario.placement.grad_dtype = DType::kFloat32;
  scenario.backwards = 2;
  for_each_world_and_stage(scenario, exact_scale);
}

TEST(Reducer, NoSyncKeepsThisRanksOwnSum) {
  Scenario scenario;
  scenario.first_is_local = true;
  scenario.backwards = 3;
  for (const bool accumulates : {false, true}) {
    scenario.placement.grad_accumulation_steps = accumulates ? 2 : 1;
    if (accumulates) scenario.placement.grad_dtype = DType::kFloat32;
    scenario.skip_percent = accumulates ? 30 : 0;
    for_each_world_and_stage(scenario);
  }
}

TEST(Reducer, WireAndGradientMayHaveOtherDtypes) {
  for (const auto& [wire, grad] :
       std::vector<std::pair<std::optional<DType>, std::optional<DType>>>{{DType::kBFloat16, DType::kFloat32},
                                                                          {DType::kFloat32, DType::kBFloat16},
                                                                          {DType::kFloat16, std::nullopt},
                                                                          {std::nullopt, DType::kFloat32}}) {
    Scenario scenario;
    scenario.placement.wire_dtype = wire;
    scenario.placement.grad_dtype = grad;
    for_each_world_and_stage(scenario);
  }
}

TEST(Reducer, ScalesBeforeAndAfterTheSum) {
  Scenario scenario;
  scenario.options.pack_scale = 1.0F / 3;
  for_each_world_and_stage(scenario, [](Scenario& s) { s.options.sum_scale = 3.0F / float(s.placement.world_size); });
}

TEST(Reducer, TransportsThatCopyPiecesGiveTheSameBits) {
  Scenario scenario;
  scenario.scratch = true;
  scenario.skip_percent = 20;
  for_each_world_and_stage(scenario);
}

TEST(Reducer, MayUseTheTransportsOwnReduction) {
  Scenario scenario;
  scenario.options.native = scenario.whole_numbers = true;
  for (const bool scratch : {false, true}) {
    scenario.scratch = scratch;
    scenario.placement.wire_dtype = DType::kFloat32;
    for_each_world_and_stage(scenario, [](Scenario& s) { s.options.sum_scale = 0.25F; });
  }
}

TEST(Reducer, ABufferIsReusedOnlyWhenEveryRankHasReadIt) {
  for (const int stage : {1, 2, 3}) {
    Scenario scenario;
    scenario.placement.stage = stage;
    scenario.placement.world_size = 3;
    scenario.backwards = 2;
    scenario.placement.grad_accumulation_steps = 2;
    const auto errors = run_local_world(3, [&](Comm& comm) {
      WatchingComm watching(comm);
      run_rank(scenario, watching);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

// The ring has one buffer per size class, and no bucket of a class is complete before all of them have begun.
TEST(Reducer, AnExhaustedRingBorrowsAndGivesBack) {
  constexpr int kUnits = 5;
  const auto errors = run_local_world(2, [&](Comm& comm) {
    std::vector<UnitLayout> units;
    for (int i = 0; i < kUnits; ++i) units.push_back(unit("u", {{{100}, DType::kFloat32}, {{10}, DType::kFloat32}}, 2));
    Scenario scenario;
    scenario.placement.stage = 3;
    scenario.placement.world_size = 2;
    scenario.slots = 1;
    Ledger ledger;
    Reducer reducer(units, place(units, scenario.placement), planned(scenario, units), comm, ledger);
    const int64_t slot = units[0].full_bytes();
    const auto held = [&] { return ledger.current().at(Category::kReduceRing, Tier::kDevice); };
    EXPECT_EQ(held(), slot);
    for (int step = 0; step < 2; ++step) {
      for (size_t param : {size_t{0}, size_t{1}}) {
        for (size_t u = kUnits; u-- > 0;) {
          const int64_t numel = units[u].params[param].numel();
          reducer.add(u, param, at::zeros({numel}, at::kFloat) + float(u + 1) * float(comm.rank() + 1), true);
        }
      }
      reducer.end_backward(true);
      for (size_t u = 0; u < kUnits; ++u) {
        const Range mine = units[u].groups[0].layout.shard(comm.rank());
        const int64_t valid = std::clamp<int64_t>(110 - mine.begin, 0, mine.size());
        EXPECT_EQ(reducer.buckets()[u].reduced().tensor().sum().item<float>(), float(valid) * 3 * float(u + 1));
      }
      reducer.end_step();
    }
    EXPECT_EQ(ledger.peak().at(Category::kReduceRing, Tier::kDevice), kUnits * slot);
    comm.barrier("end");  // threads: a peer may still read this rank's buffers
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Reducer, TheRingIsEnoughWhenUnitsCompleteInTheirOrder) {
  for (const int world_size : {2, 4}) {
    for (const int stage : {2, 3}) {
      const auto errors = run_local_world(world_size, [&](Comm& comm) {
        const std::vector<UnitLayout> units = model(world_size);
        Scenario scenario;
        scenario.placement.stage = stage;
        scenario.placement.world_size = world_size;
        Ledger ledger;
        Reducer reducer(units, place(units, scenario.placement), planned(scenario, units), comm, ledger);
        const Bytes before = ledger.current();
        const Script script(scenario, units);
        for (int step = 0; step < 3; ++step) {
          for (const Event& event : script.events(comm.rank(), step, 0)) {
            reducer.add(event.unit, event.param, script.grad(comm.rank(), step, 0, event), true);
          }
          reducer.end_backward(true);
          reducer.end_step();
        }
        EXPECT_EQ(ledger.peak(), before);
        comm.barrier("end");  // threads: a peer may still read this rank's buffers
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

// In the first backward pass too, and also where another rank's forward pass went another way.
TEST(Reducer, TheRingIsEnoughWhenUnitsCompleteAgainstTheForwardOrderOfRank0) {
  constexpr size_t kUnits = 8, kUnused = 5;
  for (const uint64_t seed : seeds(20)) {
    SeededRandom random(seed);
    std::vector<size_t> order(kUnits);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::erase(order, kUnused);
    std::vector<size_t> needed = order;
    needed.insert(needed.end(), order.begin(), order.begin() + 3);  // modules called twice
    const auto errors = run_local_world(3, [&](Comm& comm) {
      std::vector<UnitLayout> units;
      for (size_t u = 0; u < kUnits; ++u)
        units.push_back(unit("u", {{{100}, DType::kFloat32}, {{10}, DType::kFloat32}}, 3));
      Scenario scenario;
      scenario.placement.stage = 3;
      scenario.placement.world_size = 3;
      Ledger ledger;
      Reducer reducer(units, place(units, scenario.placement), planned(scenario, units), comm, ledger);
      const Bytes before = ledger.current();
      for (int step = 0; step < 2; ++step) {
        reducer.begin_backward(comm.rank() == 0 ? needed : std::vector<size_t>{3, 1}, true, comm);
        for (size_t i = order.size(); i-- > 0;) {
          for (const size_t param : {0, 1})
            reducer.add(order[i], param, at::ones({units[order[i]].params[param].numel()}), true);
        }
        reducer.end_backward(true);
        reducer.end_step();
      }
      EXPECT_EQ(ledger.peak(), before) << seed;
      comm.barrier("end");  // threads: a peer may still read this rank's buffers
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(Reducer, OneExchangePerBucketAndBackwardAndNothingElse) {
  for (const int world_size : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool local : {false, true}) {
        Scenario scenario;
        scenario.placement.stage = stage;
        scenario.placement.world_size = world_size;
        scenario.backwards = 2;
        scenario.placement.grad_accumulation_steps = 2;
        scenario.first_is_local = local;
        scenario.steps = 3;
        SCOPED_TRACE(text(scenario));
        const auto errors = run_local_world(world_size, [&](Comm& comm) {
          RecordingComm recording(comm);
          int64_t buckets = 0, bytes = 0;
          for (const UnitLayout& layout : model(world_size)) {
            for (const FlatGroup& group : layout.groups) {
              if (!group.requires_grad) continue;
              ++buckets;
              bytes += group.layout.padded_numel() * element_size(group.dtype);
            }
          }
          run_rank(scenario, recording, [&](int step, Reducer&) {
            const int64_t reductions = local ? 1 : 2, gathers = stage == 0 && world_size > 1 ? buckets : 0;
            EXPECT_EQ(recording.count(OpKind::kExchange), buckets * reductions);
            EXPECT_EQ(recording.bytes(OpKind::kExchange), bytes * reductions);
            EXPECT_EQ(recording.count(OpKind::kAllGather), gathers);
            EXPECT_EQ(recording.count(OpKind::kBroadcast), step == 0 ? 1 : 0);  // the launch order
            EXPECT_EQ(recording.count(OpKind::kAllReduce) + recording.count(OpKind::kReduceScatter) +
                          recording.count(OpKind::kAllToAll),
                      0);
            EXPECT_TRUE(step == 0 || recording.count(OpKind::kAllocate) == 0);
            EXPECT_EQ(recording.count(OpKind::kBarrier), 1);  // the test's own
            recording.reset();
          });
        });
        for (const std::string& error : errors) EXPECT_EQ(error, "");
      }
    }
  }
}

TEST(Reducer, LaunchesInTheOrderOfRankZeroFromTheSecondBackwardOn) {
  std::vector<std::vector<std::string>> orders(3);
  const auto errors = run_local_world(3, [&](Comm& comm) {
    RecordingComm recording(comm);
    Scenario scenario;
    scenario.placement.stage = 1;
    scenario.placement.world_size = 3;
    scenario.same_order = false;
    scenario.seed = 5;
    run_rank(scenario, recording, [&](int step, Reducer&) {
      for (const auto& call : recording.calls()) {
        if (step == 1 && call.kind == OpKind::kExchange) orders[size_t(comm.rank())].push_back(call.tag);
      }
      recording.reset();
    });
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(orders[1], orders[0]);
  EXPECT_EQ(orders[2], orders[0]);
  // The order in which rank 0's buckets are complete.
  const std::vector<UnitLayout> units = model(3);
  Scenario scenario;
  scenario.same_order = false;
  scenario.seed = 5;
  std::map<std::pair<size_t, size_t>, size_t> left;
  std::vector<std::string> expected;
  for (const Event& event : Script(scenario, units).events(0, 0, 0)) {
    for (size_t g = 0; g < units[event.unit].groups.size(); ++g) {
      const auto& params = units[event.unit].groups[g].params;
      if (std::find(params.begin(), params.end(), event.param) == params.end()) continue;
      if (++left[{event.unit, g}] == params.size()) expected.push_back(units[event.unit].name);
    }
  }
  EXPECT_EQ(orders[0], expected);
}

}  // namespace
}  // namespace zeroshard
