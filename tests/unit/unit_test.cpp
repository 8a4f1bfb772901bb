#include "unit/unit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local_comm.h"
#include "device/dtype.h"
#include "group/groups.h"
#include "support/comm_world.h"
#include "support/test_comms.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using testing::run_local_world;

constexpr int kWorlds[] = {1, 2, 3, 4, 7};
constexpr Placement kPlacements[] = {Placement::kReplicated, Placement::kSharded, Placement::kPersistent};

struct Param {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  bool requires_grad = true;
  int tensors = 1;  // several: tied
};

const std::vector<Param> kParams = {{"weight", {33, 40}},
                                    {"half", {7, 9}, DType::kBFloat16},
                                    {"nothing", {0, 4}},
                                    {"tied", {50, 3}, DType::kFloat32, true, 3},
                                    {"frozen", {1030}, DType::kFloat32, false},
                                    {"index", {11}, DType::kOther8, false},
                                    {"scalar", {}}};

// The value of element 0 of parameter `index` on `rank`, before the unit exists; others count up from it.
at::Tensor initial(size_t index, int rank) {
  const Param& param = kParams[index];
  at::Tensor values = at::empty(param.shape, at::kFloat);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] = float(index * 2 + size_t(rank) * 16 + size_t(i % 16) / 4);
  return values.to(param.dtype == DType::kOther8 ? at::kLong : to_scalar_type(param.dtype));
}

// A unit of kParams on one rank, with all it needs.
struct Fixture {
  Fixture(Comm& comm_, Placement placement, int slots = 2)
      : comm(comm_), ring({{layout().full_bytes(), slots}}, [this](int64_t bytes) {
          return FlatBuffer(bytes, at::kCPU, ledger, Category::kGatherRing);
        }) {
    UnitSource source;
    for (size_t i = 0; i < kParams.size(); ++i) {
      const at::Tensor first = initial(i, comm.rank()).set_requires_grad(kParams[i].requires_grad);
      source.params.push_back({first});
      while (int(source.params[i].size()) < kParams[i].tensors)
        source.params[i].push_back(first.detach().requires_grad_());
    }
    tensors = source.params;
    PlacementOptions options;
    options.world_size = comm.world_size();
    options.stage = placement == Placement::kReplicated ? 0 : 3;
    UnitPlacement& place = placements.emplace_back(UnitPlacement{placement, {}});
    for (const FlatGroup& group : layouts.front().groups)
      place.groups.push_back(place_group(group.dtype, group.requires_grad, placement, options));
    groups.emplace(layouts, placements, Groups::Options{}, comm, ledger);
    unit.emplace(layouts.front(), groups->of_unit(0), placement, std::move(source), at::kCPU, Unit::Comms{comm, comm},
                 ring, gathers);
  }
  UnitLayout layout() const {
    std::vector<ParamSpec> specs;
    for (const Param& param : kParams) specs.push_back({{param.name}, param.shape, param.dtype, param.requires_grad});
    return make_unit_layout("unit", std::move(specs), comm.world_size());
  }
  // Every tensor holds the values that `rank` had, plus `added`.
  void expect_values(int rank = 0, float added = 0) const {
    for (size_t i = 0; i < kParams.size(); ++i) {
      ASSERT_EQ(int(tensors[i].size()), kParams[i].tensors);
      for (const at::Tensor& tensor : tensors[i]) {
        const at::Tensor expected = kParams[i].requires_grad ? initial(i, rank) + added : initial(i, rank);
        EXPECT_EQ(tensor.sizes(), expected.sizes());
        EXPECT_EQ(tensor.scalar_type(), expected.scalar_type());
        EXPECT_EQ(tensor.requires_grad(), kParams[i].requires_grad);
        EXPECT_TRUE(tensor.detach().equal(expected)) << kParams[i].name << " on rank " << comm.rank();
      }
    }
  }
  // Adds to the trainable shards, as an optimizer does.
  void add_to_shards(float value) {
    for (ShardedGroup& group : unit->groups())
      if (group.is_trained()) group.my_shard().add_(value);
  }

  // Adds 1 to the shards of all ranks, and makes the unit whole again.
  void update() {
    comm.barrier("gathers are done, shards may be written");
    add_to_shards(1);
    unit->start_refresh();
    unit->finish_refresh();
    unit->unshard();
    unit->wait();
  }

  Comm& comm;
  Ledger ledger;
  SlotRing ring;
  std::vector<UnitLayout> layouts{layout()};
  std::vector<UnitPlacement> placements;
  std::optional<Groups> groups;
  std::vector<std::vector<at::Tensor>> tensors;
  GatherStream gathers{at::kCPU};
  std::optional<Unit> unit;
};

// Ranks meet in a barrier before a Fixture goes: peers may still gather from its shards.
void run(const std::function<void(Comm&)>& body) {
  for (const int world_size : kWorlds) {
    SCOPED_TRACE(::testing::Message() << "world " << world_size);
    for (const std::string& error : run_local_world(world_size, body)) EXPECT_EQ(error, "");
  }
}

TEST(Unit, EveryRankHasTheValuesOfRankZeroAfterEveryRoundTrip) {
  run([](Comm& comm) {
    for (const Placement placement : kPlacements) {
      Fixture f(comm, placement);
      for (int round = 0; round < 3; ++round) {
        f.unit->unshard();
        f.unit->unshard();
        f.unit->wait();
        f.unit->wait();
        EXPECT_TRUE(f.unit->is_unsharded());
        f.expect_values();
        f.unit->reshard();
        f.unit->reshard();
        EXPECT_EQ(f.unit->is_unsharded(), placement == Placement::kReplicated);
      }
      comm.barrier("end");
    }
  });
}

TEST(Unit, AShardIsThisRanksSliceOfTheWhole) {
  run([](Comm& comm) {
    for (const Placement placement : kPlacements) {
      Fixture f(comm, placement);
      f.unit->unshard();
      f.unit->wait();
      for (size_t g = 0; g < f.unit->groups().size(); ++g) {
        const Range mine = f.unit->layout().groups[g].layout.shard(comm.rank());
        EXPECT_TRUE(f.unit->groups()[g].my_shard().equal(f.unit->full(g).slice(0, mine.begin, mine.end)));
      }
      comm.barrier("end");
    }
  });
}

TEST(Unit, ReadingAShardedParameterNamesIt) {
  run([](Comm& comm) {
    Fixture f(comm, Placement::kSharded);
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < kParams.size(); ++i) {
        if (initial(i, 0).numel() == 0) continue;
        for (const at::Tensor& tensor : f.tensors[i]) {
          EXPECT_EQ(tensor.sizes(), initial(i, 0).sizes());
          try {
            tensor.sum();
            ADD_FAILURE() << kParams[i].name << " was read while sharded";
          } catch (const std::exception& error) {
            EXPECT_THAT(error.what(), HasSubstr("parameter '" + kParams[i].name + "' is sharded"));
          }
        }
      }
      f.unit->unshard();
      f.unit->wait();
      f.unit->reshard();
    }
    comm.barrier("end");
  });
}

TEST(Unit, WrittenShardsReachEveryRankAtTheNextUse) {
  run([](Comm& comm) {
    for (const Placement placement : kPlacements) {
      Fixture f(comm, placement);
      for (int step = 1; step <= 3; ++step) {
        f.unit->unshard();
        f.unit->wait();
        f.unit->reshard();  // of a persistent unit this frees nothing for good: it is gathered anew below
        f.update();
        f.expect_values(0, float(step));
        comm.barrier("checked");
      }
    }
  });
}

TEST(Unit, APersistentUnitCountsAsShardedAfterARefresh) {
  run([](Comm& comm) {
    RecordingComm recording(comm);
    Fixture f(recording, Placement::kPersistent);
    recording.reset();
    const auto groups = int64_t(f.unit->layout().groups.size());
    for (int use = 0; use < 3; ++use) {
      f.unit->unshard();
      f.unit->wait();
    }
    EXPECT_EQ(recording.count(OpKind::kAllGather), groups);
    f.unit->start_refresh();
    EXPECT_TRUE(f.unit->is_sharded());
    f.unit->unshard();
    f.unit->wait();
    EXPECT_EQ(recording.count(OpKind::kAllGather), 2 * groups);
    recording.barrier("end");
  });
}

TEST(Unit, MastersReceiveTheInitialValuesAtFullPrecision) {
  run([](Comm& comm) {
    for (const Placement placement : kPlacements) {
      Fixture f(comm, placement);
      int masters = 0;
      for (const ShardedGroup& group : f.unit->groups()) {
        if (!group.is_trained() || !group.has_master()) continue;
        ++masters;
        EXPECT_TRUE(group.states().in_memory()->master.equal(group.updated_parameters().to(at::kFloat)));
      }
      EXPECT_EQ(masters, 1);
      comm.barrier("end");
    }
  });
}

TEST(Unit, ViewsThatUsersKeepHaveTheValuesOfTheTimeWhenTheyHeldIt) {
  run([](Comm& comm) {
    for (const Placement placement : {Placement::kSharded, Placement::kPersistent}) {
      Fixture f(comm, placement);
      std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // a view, and its values
      for (int step = 0; step < 3; ++step) {
        f.unit->begin_hold();
        f.unit->unshard();
        f.unit->wait();
        for (const size_t i : {0, 1, 3}) {
          const at::Tensor view = f.tensors[i].back().detach().slice(0, 1);
          kept.emplace_back(view, view.clone());
        }
        f.unit->end_hold(/*leaves=*/true);
        EXPECT_EQ(f.unit->is_unsharded(), placement == Placement::kPersistent);
        f.unit->reshard();
        f.update();
        f.expect_values(0, float(step + 1));
        for (const auto& [view, values] : kept) EXPECT_TRUE(view.equal(values));
        f.unit->reshard();
        comm.barrier("checked");
      }
      f.unit.reset();
      for (const auto& [view, values] : kept) EXPECT_TRUE(view.equal(values));
    }
  });
}

TEST(Unit, ViewsThatWereThereBeforeComeAndGoWithTheParameter) {
  run([](Comm& comm) {
    for (const Placement placement : {Placement::kSharded, Placement::kPersistent}) {
      Fixture f(comm, placement);
      at::Tensor gone = f.tensors[1][0].detach();
      const at::Tensor before = f.tensors[0][0].detach().t();  // as autograd saves it
      for (int step = 0; step < 2; ++step) {
        f.unit->begin_hold();
        f.unit->unshard();
        f.unit->wait();
        const at::Tensor used = f.tensors[1][0].detach().clone();  // its view is gone at once
        gone.reset();
        f.unit->end_hold(/*leaves=*/true);
        EXPECT_TRUE(f.unit->is_unsharded());
        EXPECT_EQ(before.const_data_ptr(), f.tensors[0][0].const_data_ptr());
        f.unit->reshard();
        EXPECT_ANY_THROW(before.sum());
      }
      f.unit.reset();
      try {
        before.sum();
        ADD_FAILURE() << "read without a unit";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("parameter 'weight' has no values any more"));
      }
      comm.barrier("end");
    }
  });
}

TEST(Unit, WriteBackTakesTheValuesOfTheGivenRank) {
  run([](Comm& comm) {
    for (const Placement placement : kPlacements) {
      for (const int root : {0, comm.world_size() - 1}) {
        Fixture f(comm, placement);
        f.unit->unshard();
        f.unit->wait();
        for (size_t i = 0; i < kParams.size(); ++i) f.tensors[i][0].detach().copy_(initial(i, comm.rank()));
        f.unit->broadcast_from(root);
        f.expect_values(root);
        f.unit->reshard();
        f.unit->unshard();
        f.unit->wait();
        f.expect_values(root);
        comm.barrier("end");
      }
    }
  });
}

TEST(Unit, TiedTensorsShareTheirElements) {
  const auto comm = make_single_comm();
  for (const Placement placement : kPlacements) {
    Fixture f(*comm, placement);
    f.unit->unshard();
    f.unit->wait();
    f.tensors[3][1].detach().fill_(42);
    EXPECT_EQ(f.tensors[3][0].data_ptr(), f.tensors[3][2].data_ptr());
    EXPECT_TRUE(f.tensors[3][2].detach().equal(at::full({50, 3}, 42.0F)));
    EXPECT_TRUE(f.tensors[0][0].detach().equal(initial(0, 0)));
  }
}

TEST(Unit, ViewsTakenBeforeAreValidAfterTheNextUnshard) {
  run([](Comm& comm) {
    Fixture f(comm, Placement::kSharded);
    f.unit->unshard();
    f.unit->wait();
    const at::Tensor saved = f.tensors[0][0].detach().t();
    f.unit->reshard();
    SlotRing::Slot* const first = f.ring.acquire(f.layout().full_bytes());  // so that other memory is used
    f.unit->unshard();
    f.unit->wait();
    EXPECT_NE(saved.data_ptr(), first->data());
    EXPECT_TRUE(saved.equal(initial(0, 0).t()));
    f.unit->reshard();
    f.ring.release(first);
    comm.barrier("end");
  });
}

TEST(Unit, PrefetchStopsAtAFullRingAndUnshardGoesBeyond) {
  run([](Comm& comm) {
    Fixture f(comm, Placement::kSharded, /*slots=*/1);
    const int64_t bytes = f.layout().full_bytes();
    const auto held = [&] { return f.ledger.current().at(Category::kGatherRing, Tier::kDevice); };
    SlotRing::Slot* const other = f.ring.acquire(bytes);
    EXPECT_FALSE(f.unit->prefetch());
    EXPECT_TRUE(f.unit->is_sharded());
    f.unit->unshard();
    f.unit->wait();
    EXPECT_EQ(held(), 2 * bytes);
    f.expect_values();
    f.unit->reshard();
    EXPECT_EQ(held(), bytes);
    f.ring.release(other);
    EXPECT_TRUE(f.unit->prefetch());
    EXPECT_FALSE(f.unit->is_sharded());
    EXPECT_TRUE(f.unit->prefetch());  // under way
    f.unit->wait();
    f.expect_values();
    EXPECT_EQ(held(), bytes);
    comm.barrier("end");
  });
}

// Notices gathers that nobody waited for: a transport may write to their output whenever it likes.
class WaitedComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) override {
    return std::make_unique<Waited>(inner().all_gather(full, shard, tag));
  }

 private:
  class Waited final : public Work {
   public:
    explicit Waited(std::unique_ptr<Work> work) : work_(std::move(work)) {}
    ~Waited() override { EXPECT_TRUE(waited_) << "a gather was dropped while it may still write"; }
    void wait() override {
      waited_ = true;
      work_->wait();
    }

   private:
    std::unique_ptr<Work> work_;
    bool waited_ = false;
  };
  void before(OpKind, int64_t, std::string_view) override {}
};

TEST(Unit, ReshardWaitsForAGatherUnderWay) {
  run([](Comm& comm) {
    WaitedComm waited(comm);
    Fixture f(waited, Placement::kSharded, /*slots=*/1);
    f.unit->unshard();
    f.unit->reshard();
    EXPECT_TRUE(f.unit->is_sharded());
    SlotRing::Slot* const slot = f.ring.try_acquire(f.layout().full_bytes());
    ASSERT_NE(slot, nullptr);
    f.ring.release(slot);
    comm.barrier("end");
  });
}

TEST(Unit, HoldsWhatItsPlacementSays) {
  run([](Comm& comm) {
    for (const Placement placement : kPlacements) {
      Fixture f(comm, placement);
      const Bytes held = f.ledger.current();
      const UnitLayout layout = f.layout();
      const int64_t ring = 2 * layout.full_bytes();
      EXPECT_EQ(held.at(Category::kParameters, Tier::kDevice),
                placement == Placement::kReplicated ? layout.full_bytes() : layout.shard_bytes());
      EXPECT_EQ(held.at(Category::kGatherRing, Tier::kDevice),
                placement == Placement::kPersistent ? ring + layout.full_bytes() : ring);
    }
  });
}

}  // namespace
}  // namespace zeroshard
