#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "comm/local_comm.h"
#include "device/dtype.h"
#include "file/support.h"
#include "group/groups.h"
#include "plan/swap_plan.h"
#include "support/comm_world.h"
#include "support/delaying_queue.h"
#include "unit/unit.h"

// Units whose shards lie in swap files.
namespace zeroshard {
namespace {

constexpr size_t kUnits = 4;

std::vector<UnitLayout> make_layouts(int world_size) {
  std::vector<UnitLayout> layouts;
  for (size_t u = 0; u < kUnits; ++u) {
    std::vector<ParamSpec> params{{{"half"}, {int64_t(11'000 + u * 7000)}, DType::kBFloat16, false},
                                  {{"index"}, {int64_t(300 * u)}, DType::kOther8, false}};
    layouts.push_back(make_unit_layout(concat("unit ", u), std::move(params), world_size));
  }
  return layouts;
}

// The units of one rank, with files whose requests come late.
class Units {
 public:
  Units(Comm& comm, const std::string& directory, int buffer_count, uint64_t seed)
      : comm_(comm), layouts_(make_layouts(comm.world_size())), placements_(place(layouts_, options())) {
    ChunkStore::Options files;
    files.directories = {directory};
    files.buffer_count = buffer_count;
    files.chunk_numel = 2 * kSumNumel;
    files.block_bytes = 1 << 13;
    space_.emplace(parameters_in_file(layouts_, placements_), files, posix_io(), ledger_, Tier::kDevice,
                   SwapSpace::OnFailure(), [&](std::unique_ptr<BlockQueue> queue) {
                     return std::make_unique<testing::DelayingQueue>(std::move(queue), seed);
                   });
    Groups::Options groups;
    groups.parameters_in_files = &*space_;
    groups_.emplace(layouts_, placements_, std::move(groups), comm_, ledger_);
    for (size_t u = 0; u < kUnits; ++u) add_unit(u);
  }

  Unit& unit(size_t index) { return *units_[index]; }
  void announce(const std::vector<size_t>& units) {
    std::vector<ChunkStore::Announced> next;
    for (const size_t u : units)
      for (const ShardedGroup& group : groups_->of_unit(u))
        if (const auto place = group.parameters().place_in_files({0, group.kept().size()})) next.push_back(*place);
    space_->will_need_next(next);
  }
  // Writes this rank's half. All ranks write the same values.
  void write(size_t u, const at::Tensor& half) {
    ShardedGroup& group = groups_->of_unit(u)[0];
    group.write_parameters({0, half.numel()}, half);
  }
  at::Tensor half(size_t u) const { return tensors_[u][0][0]; }

 private:
  PlacementOptions options() const {
    PlacementOptions options;
    options.world_size = comm_.world_size();
    options.stage = 3;
    options.persistence_threshold = 0;
    options.parameter_tier = Tier::kFile;
    return options;
  }
  void add_unit(size_t u) {
    UnitSource source;
    for (const ParamSpec& param : layouts_[u].params)
      source.params.push_back(
          {at::randint(100, param.shape).to(param.dtype == DType::kOther8 ? at::kLong : at::kBFloat16)});
    tensors_.push_back(source.params);
    units_.push_back(std::make_unique<Unit>(layouts_[u], groups_->of_unit(u), Placement::kSharded, std::move(source),
                                            at::kCPU, Unit::Comms{comm_, comm_}, ring_, gathers_));
  }

  Comm& comm_;
  Ledger ledger_;
  std::vector<UnitLayout> layouts_;
  std::vector<UnitPlacement> placements_;
  std::optional<SwapSpace> space_;
  std::optional<Groups> groups_;
  SlotRing ring_{{}, [this](int64_t bytes) { return FlatBuffer(bytes, at::kCPU, ledger_, Category::kGatherRing); }};
  GatherStream gathers_{at::kCPU};
  std::vector<std::vector<std::vector<at::Tensor>>> tensors_;
  std::vector<std::unique_ptr<Unit>> units_;
};

// Gathers in any order, of what was announced and of what was not, have what was written last.
void gather_in_any_order(Units& units, testing::Random& random) {
  std::array<at::Tensor, kUnits> expected;
  for (size_t u = 0; u < kUnits; ++u) {
    units.unit(u).unshard();
    units.unit(u).wait();
    expected[u] = units.half(u).clone();
    units.unit(u).reshard();
  }
  for (int step = 0; step < 60; ++step) {
    const size_t u = random() % kUnits, ahead = random() % kUnits;
    if (random() % 2 == 0) units.announce({u, ahead, random() % kUnits});
    if (random() % 3 == 0) {
      units.unit(u).reshard();
      expected[u] = at::full({expected[u].numel()}, double(random() % 100), at::kBFloat16);
      units.write(u, expected[u]);
    }
    units.unit(u).unshard();
    if (random() % 2 == 0) units.unit(ahead).unshard();
    units.unit(u).wait();
    ASSERT_TRUE(units.half(u).equal(expected[u])) << "step " << step;
    units.unit(u).reshard();
    if (random() % 2 == 0) units.unit(ahead).reshard();
  }
  for (size_t u = 0; u < kUnits; ++u) units.unit(u).reshard();
}

TEST(UnitsInFiles, GatherWhatWasWrittenHoweverLateItArrives) {
  const testing::TemporaryDirectory directory;
  for (const int world_size : {1, 2, 3}) {
    for (const int buffer_count : {1, 2, 5}) {
      for (const uint64_t seed : testing::seeds(2)) {
        SCOPED_TRACE(concat("world ", world_size, ", buffers ", buffer_count, ", seed ", seed));
        const auto errors = testing::run_local_world(world_size, [&](Comm& comm) {
          Units units(comm, directory.path(), buffer_count, seed * 10 + uint64_t(comm.rank()));
          testing::Random random(seed);  // the same on all ranks
          gather_in_any_order(units, random);
          comm.barrier("end");
        });
        for (const std::string& error : errors) EXPECT_EQ(error, "");
      }
    }
  }
}

}  // namespace
}  // namespace zeroshard
