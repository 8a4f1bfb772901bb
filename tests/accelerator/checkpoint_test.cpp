// Engines on simulated devices save and load as those on the CPU do, and wait for no copy that they do not need.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "accelerator/support.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/load.h"
#include "checkpoint/uploads.h"
#include "checkpoint_torch/state_data.h"
#include "engine/support.h"
#include "file/support.h"
#include "support/faulty_io.h"
#include "support/forwarding_comm.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

using test::make_scenario;
using test::run_saving;
using test::SavingRank;
using test::Scenario;
using testing::contents_of;
using ::testing::Each;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

class DeviceCheckpoint : public ::testing::TestWithParam<std::tuple<Schedule, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/5); }
  void TearDown() override { end_on_devices(); }

  // 16-bit parameters, so that there are master weights.
  static Scenario scenario(int world_size, int stage) {
    Scenario made = make_scenario(world_size, stage);
    made.config.compute_dtype = DType::kBFloat16;
    return made;
  }
  static void expect_no_race() {
    EXPECT_THAT(Streams::get().races().found(), IsEmpty());
    EXPECT_THAT(operators_that_waited(), IsEmpty());
    EXPECT_EQ(pinned_frees_in_use(), 0);
  }
  const TemporaryDirectory root_;
};

// Schedule and ranks.
std::vector<std::tuple<Schedule, int>> checkpoint_cases() {
  std::vector<std::tuple<Schedule, int>> all;
  for (const Schedule schedule : {Schedule::kEager, Schedule::kLate, Schedule::kLazy})
    for (const int ranks : {1, 2, 3}) all.emplace_back(schedule, ranks);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceCheckpoint, ::testing::ValuesIn(checkpoint_cases()));

// Values after two steps and after two more, of a run on the CPU that has saved in between.
struct Straight {
  at::Tensor saved, end;
};

Straight run_on_cpu(const Scenario& scenario, const std::string& root) {
  Straight result;
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    for (const int step : {0, 1}) rank.train_step(scenario, step);
    rank.engine->save_checkpoint(root, "a", 2);
    const at::Tensor saved = rank.values();
    for (const int step : {2, 3}) rank.train_step(scenario, step);
    const at::Tensor end = rank.values();
    if (rank.rank == 0) result = {saved, end};
  });
  EXPECT_THAT(errors, Each(""));
  return result;
}

// What an engine on the CPU loads; with the buffer of 100 elements, if it is there.
at::Tensor values_in(const std::string& root, const std::string& tag, Scenario scenario, at::Tensor buffer = {}) {
  scenario.world_size = scenario.config.world_size = 1;
  at::Tensor values;
  const auto errors = run_saving(
      scenario,
      [&](SavingRank& rank) {
        LoadOptions load;
        load.tag = tag;
        const auto loaded = rank.engine->load_checkpoint(root, load, [&](const std::vector<TensorInfo>&) {
          std::vector<TensorState> wanted;
          if (buffer.defined()) wanted.push_back({"b", "buffer", buffer, {buffer.numel()}});
          return wanted;
        });
        EXPECT_NE(loaded, std::nullopt);
        values = rank.values();
      },
      /*first_seed=*/9);
  EXPECT_THAT(errors, Each(""));
  return values;
}

void expect_the_same_files(const std::string& one, const std::string& other, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string name = concat("/a/rank-0000", rank, ".safetensors");
    EXPECT_TRUE(contents_of(one + name) == contents_of(other + name)) << name;
  }
}

// The bytes of the checkpoint are the CPU's. Training goes on with the CPU's bits: straight on, and by way of the
// checkpoint into an engine of another stage that has trained with other values; other numbers of ranks load it, too.
TEST_P(DeviceCheckpoint, GoesAroundWithTheCpusBits) {
  const auto [schedule, world_size] = GetParam();
  const TemporaryDirectory cpu_root;
  const Scenario on_cpu = scenario(world_size, 3);
  const Straight expected = run_on_cpu(on_cpu, cpu_root.path());
  Scenario saving = on_devices(on_cpu);
  EXPECT_THAT(run_saving(saving,
                         [&](SavingRank& rank) {
                           for (const int step : {0, 1}) rank.train_step(saving, step);
                           rank.engine->save_checkpoint(root_.path(), "a", 2);
                           for (const int step : {2, 3}) rank.train_step(saving, step);
                           EXPECT_TRUE(rank.values().equal(expected.end));
                         }),
              Each(""));
  expect_the_same_files(root_.path(), cpu_root.path(), world_size);
  for (const int readers : {1, 2, 3}) {
    const Scenario loading = on_devices(scenario(readers, 1));
    EXPECT_THAT(run_saving(
                    loading,
                    [&](SavingRank& rank) {
                      rank.train_step(loading, 0);
                      EXPECT_NE(rank.engine->load_checkpoint(root_.path()), std::nullopt);
                      EXPECT_TRUE(rank.values().equal(expected.saved));
                      if (readers != world_size) return;
                      for (const int step : {2, 3}) rank.train_step(loading, step);
                      EXPECT_TRUE(rank.values().equal(expected.end));
                    },
                    /*first_seed=*/7),
                Each(""));
  }
  expect_no_race();
}

// Lets no thread but the rank's own go on while it is closed: what is given to the device meanwhile is ordered by the
// engine alone, and not by the writer's waits.
class Gate final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  void close() { is_open_ = false; }
  void open() {
    is_open_ = true;
    is_open_.notify_all();
  }

 private:
  void before(OpKind, int64_t, std::string_view) override {
    if (std::this_thread::get_id() != owner_) is_open_.wait(false);
  }

  std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<bool> is_open_ = true;
};

std::vector<std::string> run_gated(const Scenario& scenario, const std::function<void(SavingRank&, Gate&)>& body) {
  const auto gather = scenario.make_world(scenario.world_size), reduce = scenario.make_world(scenario.world_size);
  const auto checkpoint = make_local_world(scenario.world_size);
  std::vector<std::unique_ptr<Gate>> gates(gather.size());
  std::vector<SavingRank> ranks(gather.size());
  return testing::run_threads(scenario.world_size, [&](int rank) {
    const auto r = size_t(rank);
    try {
      gates[r] = std::make_unique<Gate>(*checkpoint[r]);
      ranks[r].make_engine(scenario, *gather[r], *reduce[r], *gates[r], /*first_seed=*/0);
      body(ranks[r], *gates[r]);
      ranks[r].engine->wait_for_checkpoint();
      checkpoint[r]->barrier("end");
    } catch (const std::exception& error) {
      if (gates[r]) gates[r]->open();
      for (const auto* world : {&gather, &reduce, &checkpoint}) (*world)[r]->abort(error.what());
      throw;
    }
  });
}

// Values after each of the first two steps on the CPU.
std::vector<at::Tensor> values_by_step(const Scenario& scenario) {
  std::vector<at::Tensor> values(2);
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    for (const int step : {0, 1}) {
      rank.train_step(scenario, step);
      const at::Tensor now = rank.values();
      if (rank.rank == 0) values[size_t(step)] = now;
    }
  });
  EXPECT_THAT(errors, Each(""));
  return values;
}

// Twice in a row; the next step, and what the user does to a buffer, are given to the device before anything is
// written. The rank's thread waits for nothing.
TEST_P(DeviceCheckpoint, HasWhatTheStateWasWhenItWasAskedFor) {
  const auto [schedule, world_size] = GetParam();
  for (const auto& [dtype, stage] : {std::pair{DType::kBFloat16, 3}, {DType::kBFloat16, 1}, {DType::kFloat32, 2}}) {
    SCOPED_TRACE(concat("stage ", stage, ", ", name_of(dtype)));
    const TemporaryDirectory root;
    Scenario on_cpu = make_scenario(world_size, stage);
    on_cpu.config.compute_dtype = dtype;
    const std::vector<at::Tensor> expected = values_by_step(on_cpu);
    const Scenario saving = on_devices(on_cpu);
    const auto errors = run_gated(saving, [&saving, &root](SavingRank& rank, Gate& gate) {
      const at::Tensor buffer = at::zeros({100}, at::TensorOptions().device(device(rank.rank)));
      rank.train_step(saving, 0);
      for (const int step : {1, 2}) {
        buffer.fill_(step);
        CheckpointContents contents;
        if (rank.rank == 0) contents.buffers.push_back({"b", "buffer", buffer, {100}});
        rank.engine->wait_for_checkpoint();
        gate.close();
        const int64_t before = Streams::host_waits_of_this_thread();
        rank.engine->save_checkpoint(root.path(), concat("step", step), step, contents);
        EXPECT_EQ(Streams::host_waits_of_this_thread(), before);
        buffer.fill_(-1);
        rank.train_step(saving, step);
        gate.open();
      }
      rank.train_step(saving, 3);
    });
    EXPECT_THAT(errors, Each(""));
    for (const int step : {1, 2}) {
      const at::Tensor buffer = at::zeros({100});
      EXPECT_TRUE(values_in(root.path(), concat("step", step), on_cpu, buffer).equal(expected[size_t(step - 1)]));
      EXPECT_TRUE(buffer.eq(step).all().item<bool>());
    }
  }
  expect_no_race();
}

TEST_P(DeviceCheckpoint, ASaveMayFollowAFailedOne) {
  const auto [schedule, world_size] = GetParam();
  testing::put(root_ / "file", "no directory");
  const Scenario saving = on_devices(scenario(world_size, 3));
  at::Tensor expected;
  EXPECT_THAT(run_saving(saving,
                         [&](SavingRank& rank) {
                           rank.train_step(saving, 0);
                           rank.engine->save_checkpoint(root_ / "file", "a", 1);
                           rank.train_step(saving, 1);
                           EXPECT_THROW(rank.engine->wait_for_checkpoint(), IoError);
                           rank.engine->save_checkpoint(root_ / "good", "a", 2);
                           const at::Tensor values = rank.values();
                           if (rank.rank == 0) expected = values;
                           rank.train_step(saving, 2);
                         }),
              Each(""));
  EXPECT_TRUE(values_in(root_ / "good", "a", scenario(1, 3)).equal(expected));
  expect_no_race();
}

// Its memory, pinned or not, is given back.
TEST_P(DeviceCheckpoint, AnEngineMayGoWhileASaveIsUnderWay) {
  const auto [schedule, world_size] = GetParam();
  const int64_t pinned = pinned_bytes(), allocated = allocated_bytes(0);
  const Scenario saving = on_devices(scenario(world_size, 3));
  at::Tensor expected;
  {
    const auto gather = saving.make_world(world_size), reduce = saving.make_world(world_size);
    const auto checkpoint = make_local_world(world_size);
    const auto errors = testing::run_threads(world_size, [&](int r) {
      SavingRank rank;
      rank.make_engine(saving, *gather[size_t(r)], *reduce[size_t(r)], *checkpoint[size_t(r)], /*first_seed=*/0);
      rank.train_step(saving, 0);
      const at::Tensor values = rank.values();
      if (r == 0) expected = values;
      rank.engine->save_checkpoint(root_.path(), "a", 1);
      rank.engine.reset();
    });
    EXPECT_THAT(errors, Each(""));
  }
  for (int i = 0; i < world_size; ++i) Streams::get().wait_for_device(i);
  EXPECT_EQ(pinned_bytes(), pinned);
  EXPECT_EQ(allocated_bytes(0), allocated);
  EXPECT_TRUE(values_in(root_.path(), "a", scenario(1, 3)).equal(expected));
  expect_no_race();
}

// What the engine has held at most is what was planned, by category, and what is pinned is the staging.
TEST_P(DeviceCheckpoint, HoldsWhatWasPlanned) {
  const auto [schedule, world_size] = GetParam();
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(stage);
    const TemporaryDirectory root;
    const Scenario saving = on_devices(scenario(world_size, stage));
    EXPECT_THAT(run_saving(saving,
                           [&](SavingRank& rank) {
                             rank.train_step(saving, 0);
                             for (const int step : {1, 2}) {
                               rank.engine->save_checkpoint(root.path(), concat("step", step), step);
                               rank.train_step(saving, step);
                             }
                             EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
                             for (const MemoryLine& line : rank.engine->memory()) {
                               if (line.category == "temporaries") {
                                 EXPECT_LE(line.measured_peak, line.planned);
                               } else {
                                 EXPECT_EQ(line.measured_peak, line.planned) << line.category;
                               }
                             }
                           }),
                Each(""));
  }
  expect_no_race();
}

// A process that may not lock memory saves and loads all the same.
TEST_P(DeviceCheckpoint, NeedsNoPinnedMemory) {
  const auto [schedule, world_size] = GetParam();
  const int64_t pinned = pinned_bytes();
  refuse_to_pin(true);
  const Scenario saving = on_devices(scenario(world_size, 3));
  EXPECT_THAT(run_saving(saving,
                         [&](SavingRank& rank) {
                           rank.train_step(saving, 0);
                           rank.engine->save_checkpoint(root_.path(), "a", 1);
                           const at::Tensor values = rank.values();
                           rank.train_step(saving, 1);
                           EXPECT_NE(rank.engine->load_checkpoint(root_.path()), std::nullopt);
                           EXPECT_TRUE(rank.values().equal(values));
                         }),
              Each(""));
  EXPECT_EQ(pinned_bytes(), pinned);
  refuse_to_pin(false);
  expect_no_race();
}

StateSlice slice_of(const at::Tensor& tensor, std::string name, Range whole, int64_t begin) {
  StateSlice slice;
  slice.name = std::move(name);
  slice.kind = "weight";
  slice.dtype = "F32";
  slice.shape = {whole.size()};
  slice.elements = {begin, begin + tensor.numel()};
  slice.data = tensor_data(tensor);
  return slice;
}

// The n-th call to the files of one rank fails, for every n: so does the save, on every rank. The device writes to the
// staging memory no more when the next save, of another size, takes other memory.
TEST_P(DeviceCheckpoint, EveryFailingFileCallFailsTheSaveAndNotTheNext) {
  const auto [schedule, world_size] = GetParam();
  constexpr int64_t kNumel = 5000, kTensors = 3;
  FaultyIo io(posix_io());
  int64_t failures = 0;
  const auto errors = testing::run_local_world(world_size, [&, ranks = world_size](Comm& comm) {
    set_current_device(comm.rank());
    const bool is_bad = comm.rank() == ranks - 1;
    Ledger ledger;
    const auto copies = device_copies(device(comm.rank()));
    AsyncSaver saver(comm, is_bad ? static_cast<Io&>(io) : posix_io(), ledger, copies.get());
    const auto no_host = [](void*, const void*, int64_t) { FAIL() << "all of it is on the device"; };
    const auto request = [&](const std::vector<at::Tensor>& tensors, int64_t nth) {
      SaveRequest made;
      made.root = root_.path();
      made.tag = "a";
      made.step = nth;
      for (size_t i = 0; i < tensors.size(); ++i)
        made.slices.push_back(slice_of(tensors[i], concat("x", i), {0, ranks * kNumel}, comm.rank() * kNumel));
      return made;
    };
    for (int64_t nth = 1; nth < 500; nth += 3) {
      std::vector<at::Tensor> tensors;
      for (int64_t i = 0; i < kTensors; ++i)
        tensors.push_back(at::full({kNumel}, float(nth + i), at::TensorOptions().device(device(comm.rank()))));
      if (is_bad) io.fail({.op = std::nullopt, .nth = nth});
      saver.start(request(tensors, nth), no_host);
      for (at::Tensor& tensor : tensors) tensor.fill_(-1);  // as an update does
      bool failed = false;
      try {
        saver.wait();
      } catch (const Error&) {
        failed = true;
      }
      comm.barrier("next");
      const bool over = !io.has_failed();
      comm.barrier("asked");
      if (is_bad) io.heal();
      if (is_bad) failures += failed ? 1 : 0;
      tensors.pop_back();
      for (at::Tensor& tensor : tensors) tensor.fill_(float(nth));
      saver.start(request(tensors, nth), no_host);
      for (at::Tensor& tensor : tensors) tensor.fill_(-1);
      saver.wait();
      std::vector<float> found(kNumel, 0);
      LoadRequest load;
      load.root = root_.path();
      load.wanted = [&](const Manifest&, const TensorIndex&) {
        StateSlice slice = slice_of(tensors[1], "x1", {0, ranks * kNumel}, comm.rank() * kNumel);
        slice.data = host_data(found.data());
        return std::vector{slice};
      };
      EXPECT_NE(load_checkpoint(load, comm, posix_io()), std::nullopt);
      EXPECT_THAT(found, Each(float(nth)));
      if (over) return;
    }
    ADD_FAILURE() << "every call fails";
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_GT(failures, 5);
  expect_no_race();
}

// Two chunks, each filled again while the device may not have copied the other.
TEST_P(DeviceCheckpoint, UploadsGoThroughTwoSmallChunks) {
  constexpr int64_t kNumel = 64 * 100;
  constexpr int64_t kBytes = kNumel * int64_t(sizeof(float)), kChunk = 1024;
  Ledger ledger;
  const auto copies = device_copies(device(0));
  set_current_device(0);
  const at::Tensor target = at::full({kNumel}, -1.0F, at::TensorOptions().device(device(0)));
  const auto data = tensor_data(target);
  const int64_t pinned = pinned_bytes();
  {
    Uploads uploads(ledger, copies.get(), kChunk);
    for (int64_t at = 0; at < kNumel; at += 64) {
      const int64_t bytes = 64 * int64_t(sizeof(float));
      std::byte* const memory = uploads.place(bytes);
      for (int64_t i = 0; i < 64; ++i) reinterpret_cast<float*>(memory)[i] = float(at + i);
      uploads.send(data, at * int64_t(sizeof(float)), bytes);
    }
    uploads.finish();
    EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), 2 * kChunk);
    EXPECT_EQ(pinned_bytes() - pinned, 2 * kChunk);
    EXPECT_LT(2 * kChunk, kBytes);
  }
  EXPECT_EQ(ledger.current().total(), 0);
  EXPECT_TRUE(target.cpu().equal(at::arange(kNumel, at::kFloat)));
  expect_no_race();
}

}  // namespace
}  // namespace zeroshard::accelerator
