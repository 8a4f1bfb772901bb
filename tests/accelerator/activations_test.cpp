// Inputs of checkpointed layers beside simulated devices, on the host and in files: they come back as they were,
// whatever is under way.
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <set>

#include "accelerator/placements.h"
#include "activations/host_activations.h"
#include "base/align.h"
#include "file/support.h"
#include "support/accelerator/operators.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

at::Tensor filled(int64_t numel, double value) {
  return at::empty({numel}, at::TensorOptions().dtype(at::kFloat).device(device(0))).fill_(value);
}

class DeviceActivations : public ::testing::TestWithParam<Schedule> {
 protected:
  DeviceActivations() { begin_on_devices(GetParam(), /*seed=*/5), pinned_before_ = pinned_bytes(); }
  ~DeviceActivations() override {
    end_on_devices();
    EXPECT_THAT(Streams::get().races().found(), IsEmpty());
    EXPECT_EQ(pinned_frees_in_use(), 0);
    EXPECT_EQ(pinned_bytes(), pinned_before_);
  }
  std::unique_ptr<CountedRecords> files() {
    RecordStore::Options options;
    options.directories = {directory_.path()};
    options.thread_count = 2;
    const auto on_failure = [this](const std::string& message) { failures_.push_back(message); };
    auto made = std::make_unique<CountedRecords>(options, io_, ledger_, Tier::kHost, on_failure);
    store_ = made->store().get();
    return made;
  }
  int64_t pinned() const { return pinned_bytes() - pinned_before_; }

  TemporaryDirectory directory_;
  FaultyIo io_{posix_io()};
  Ledger ledger_;
  std::vector<std::string> failures_;
  RecordStore* store_ = nullptr;
  int64_t pinned_before_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceActivations,
                         ::testing::Values(Schedule::kEager, Schedule::kLate, Schedule::kLazy));

// Tensors of all lengths that are kept, brought back and dropped in any order, on several streams. Those that are freed
// are poisoned, and their memory is lent again.
TEST_P(DeviceActivations, ComeBackAsTheyWereInAnyOrder) {
  for (const bool to_files : {false, true}) {
    for (const uint64_t seed : testing::seeds(3)) {
      testing::SeededRandom random(seed);
      HostActivations keeper(device(0), to_files ? files() : nullptr);
      std::map<int, std::pair<double, std::shared_ptr<KeptTensor>>> kept;
      std::vector<at::Tensor> differences;
      std::vector<c10::Stream> streams{to_stream(current_stream(0)), to_stream(Streams::get().make_stream(0))};
      int64_t longest = 0;
      for (int step = 0; step < 150; ++step) {
        move_to(streams[random() % 2]);
        if (const uint64_t what = random() % 8; what < 4 || kept.empty()) {
          const int64_t numel = random.between(1024, what == 0 ? 600'000 : 9'000);
          longest = std::max(longest, align_up(numel * 4, 512));  // as the device's allocator does
          const at::Tensor tensor = filled(numel, step);
          kept[step] = {step, keeper.keep(tensor)};
          ASSERT_NE(kept[step].second, nullptr);
        } else if (what == 4) {
          keeper.begin_backward();
        } else {
          // Mostly the newest, as backward passes go.
          const auto at =
              what == 5 ? std::next(kept.begin(), random.between(0, int(kept.size()) - 1)) : std::prev(kept.end());
          const uint64_t how = random() % 4;  // as a graph that is dropped, one that is kept, and others
          if (how != 0) differences.push_back(at->second.second->bring_back() - at->second.first);
          if (how != 1) kept.erase(at);
        }
        if (to_files) {
          ASSERT_LE(pinned(), kHostBlocks * longest);
        }
      }
      if (to_files) {
        EXPECT_GT(store_->bytes_written(), 0);
        EXPECT_GT(store_->bytes_read(), 0);
      }
      for (const at::Tensor& difference : differences) ASSERT_EQ(difference.cpu().abs().sum().item<float>(), 0);
      move_to(streams[0]);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_P(DeviceActivations, ComeBackAsTheyLay) {
  HostActivations keeper(device(0), files());
  const at::Tensor host = testing::random_tensor({64, 48}, /*seed=*/1);
  const at::Tensor tensor = host.to(device(0));
  std::vector<std::pair<std::shared_ptr<KeptTensor>, at::Tensor>> kept;
  for (const at::Tensor& each : {tensor, tensor.t(), tensor.narrow(0, 16, 32), tensor.view(at::kInt)})
    kept.emplace_back(keeper.keep(each), each);
  for (int i = 0; i < kHostBlocks; ++i) kept.emplace_back(keeper.keep(filled(2048, i)), filled(2048, i));
  for (const auto& [each, expected] : kept) {
    const at::Tensor back = each->bring_back();
    EXPECT_EQ(back.strides(), expected.strides());
    EXPECT_EQ(back.scalar_type(), expected.scalar_type());
    EXPECT_TRUE(back.cpu().equal(expected.cpu()));
  }
  // What has gaps, begins where no memory begins, or is small stays.
  for (const at::Tensor& each : {tensor.narrow(1, 0, 32), tensor.flatten().narrow(0, 1, 2048), filled(100, 0), host})
    EXPECT_EQ(keeper.keep(each), nullptr);
}

// The bound on what the host holds, and when anybody waits: never for the tensor that was made last.
TEST_P(DeviceActivations, PassThroughAFewBlocksAndTheHostRunsAhead) {
  constexpr int64_t kNumel = 10'240, kBytes = kNumel * 4;
  HostActivations keeper(device(0), files());
  EXPECT_EQ(ledger_.current().at(Category::kSwap, Tier::kHost), kRecordStagingBytes);
  std::vector<std::shared_ptr<KeptTensor>> kept;
  for (int i = 0; i < 8; ++i) {
    const StreamKey behind = Streams::get().make_stream(0);
    Streams::get().hold(behind);  // it has not made the tensor when that is kept
    auto keeping = std::async(std::launch::async, [&] {
      set_current_device(0);
      const c10::StreamGuard guard(to_stream(behind));
      const at::Tensor tensor = filled(kNumel, i);
      const int64_t waits = Streams::host_waits_of_this_thread();
      kept.push_back(keeper.keep(tensor));
      return Streams::host_waits_of_this_thread() - waits;
    });
    EXPECT_EQ(keeping.wait_for(std::chrono::seconds(20)), std::future_status::ready) << i;
    Streams::get().release(behind);
    EXPECT_EQ(keeping.get(), i < kHostBlocks ? 0 : 1) << i;
    EXPECT_EQ(pinned(), std::min(i + 1, kHostBlocks) * kBytes);
    EXPECT_EQ(store_->num_records(), std::max(0, i + 1 - kHostBlocks));
  }
  keeper.begin_backward();
  for (int i = 7; i >= 0; --i) {
    const int64_t copies = Streams::get().counts().copies;
    const at::Tensor back = kept.back()->bring_back();
    kept.pop_back();
    EXPECT_EQ(Streams::get().counts().copies - copies, i > 0 ? 1 : 0) << i;  // of the next one
    EXPECT_EQ(back.cpu().sub(i).abs().sum().item<float>(), 0);
  }
  EXPECT_EQ(store_->num_records(), 0);
  EXPECT_EQ(store_->bytes_read(), 5 * kBytes);  // those that lay in blocks did not leave memory
  EXPECT_EQ(pinned(), kHostBlocks * kBytes);
  for (int i = 0; i < 8; ++i) kept.push_back(keeper.keep(filled(2 * kNumel, i)));  // longer ones take their place
  EXPECT_EQ(pinned(), 2 * kHostBlocks * kBytes);
}

TEST_P(DeviceActivations, AreKeptOnceUntilTheyChange) {
  for (const bool to_files : {false, true}) {
    HostActivations keeper(device(0), to_files ? files() : nullptr);
    at::Tensor tensor = filled(5000, 1);
    std::shared_ptr<KeptTensor> kept = keeper.keep(tensor);
    EXPECT_EQ(keeper.keep(tensor), kept);
    EXPECT_EQ(keeper.keep(tensor.view({5000})), kept);
    EXPECT_NE(keeper.keep(tensor.view({50, 100})), kept);
    EXPECT_NE(keeper.keep(tensor.narrow(0, 0, 4000)), kept);
    std::vector<std::shared_ptr<KeptTensor>> others;
    for (int i = 0; i < 6; ++i) others.push_back(keeper.keep(filled(5000, i)));
    EXPECT_EQ(keeper.keep(tensor), kept);
    tensor.view({50, 100}).add_(1);  // through another tensor
    EXPECT_THAT(testing::message_of<StateError>([&] { kept->bring_back(); }), HasSubstr("was changed in place"));
    const auto changed = keeper.keep(tensor);
    EXPECT_NE(changed, kept);
    EXPECT_EQ(changed->bring_back().cpu().sub(2).abs().sum().item<float>(), 0);
    kept.reset();
    for (int i = 5; i >= 0; --i)
      EXPECT_EQ(others[size_t(i)]->bring_back().cpu().sub(i).abs().sum().item<float>(), 0) << i;
  }
}

TEST_P(DeviceActivations, ATensorAtThePlaceOfAFreedOneIsAnother) {
  for (const bool to_files : {false, true}) {
    HostActivations keeper(device(0), to_files ? files() : nullptr);
    std::vector<std::shared_ptr<KeptTensor>> kept;
    std::vector<at::Tensor> without_memory;
    std::set<const void*> places;
    for (int i = 0; i < 12; ++i) {
      at::Tensor tensor = filled(5000, i);
      places.insert(tensor.const_data_ptr());
      kept.push_back(keeper.keep(tensor));
      if (i % 2 == 0) {  // the tensor is there, its memory is not
        resize_storage(tensor.storage(), 0);
        without_memory.push_back(tensor);
      }
      tensor.reset();
      Streams::get().wait_for_device(0);  // so that the memory is lent again
    }
    EXPECT_LT(places.size(), kept.size());
    for (int i = 11; i >= 0; --i)
      EXPECT_EQ(kept[size_t(i)]->bring_back().cpu().sub(i).abs().sum().item<float>(), 0) << i;
  }
}

TEST_P(DeviceActivations, OutliveTheirKeeper) {
  for (const bool to_files : {false, true}) {
    auto keeper = std::make_unique<HostActivations>(device(0), to_files ? files() : nullptr);
    std::vector<std::shared_ptr<KeptTensor>> kept;
    for (int i = 0; i < 7; ++i) kept.push_back(keeper->keep(filled(5000, i)));
    kept.back()->bring_back();
    keeper.reset();
    EXPECT_EQ(ledger_.current().total(), 0);
    EXPECT_EQ(kept[0]->bring_back().cpu().abs().sum().item<float>(), 0);
    EXPECT_EQ(kept[6]->bring_back().cpu().sub(6).abs().sum().item<float>(), 0);
  }
}

// Whichever call of the file system fails: one error at once, told once, and the same at each later use of the files.
TEST_P(DeviceActivations, AFileThatFailsIsToldAndEndsThem) {
  int failed = 0;
  for (const IoOp op : {IoOp::kWrite, IoOp::kRead, IoOp::kAllocate}) {
    for (int nth = 1; nth <= 3; ++nth) {
      failures_.clear();
      HostActivations keeper(device(0), files());
      io_.fail({.op = op, .nth = nth, .sticky = true});
      std::vector<std::shared_ptr<KeptTensor>> kept;
      const auto pass = [&] {
        for (int i = 0; i < 9; ++i) kept.push_back(keeper.keep(filled(5000, i)));
        keeper.begin_backward();
        for (; !kept.empty(); kept.pop_back()) kept.back()->bring_back();
      };
      const std::string first = testing::message_of<IoError>(pass);
      if (!io_.has_failed()) continue;
      ++failed;
      EXPECT_THAT(first, HasSubstr(directory_.path())) << int(op) << " " << nth;
      EXPECT_THAT(failures_, ::testing::ElementsAre(first));
      io_.heal();
      EXPECT_EQ(testing::message_of<IoError>(pass), first);
      kept.clear();
      EXPECT_EQ(failures_.size(), 1U);
    }
  }
  EXPECT_GE(failed, 5);
}

TEST_P(DeviceActivations, AForkedChildLeavesThemToItsParent) {
  for (const bool to_files : {false, true}) {
    HostActivations keeper(device(0), to_files ? files() : nullptr);
    const at::Tensor tensor = filled(5000, 9);
    std::vector<std::shared_ptr<KeptTensor>> kept;
    for (int i = 0; i < 5; ++i) kept.push_back(keeper.keep(filled(5000, i)));
    Streams::get().wait_for_device(0);
    const pid_t child = ::fork();
    if (child == 0) {
      int refused = 0;
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { kept[0]->bring_back(); }, [&] { keeper.keep(tensor); }, [&] { keeper.begin_backward(); }}) {
        try {
          call();
        } catch (const StateError&) {
          ++refused;
        }
      }
      kept.clear();
      ::_exit(refused);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
    EXPECT_EQ(kept[0]->bring_back().cpu().abs().sum().item<float>(), 0);
  }
}

TEST_P(DeviceActivations, AnyThreadMayUseThem) {
  HostActivations keeper(device(0), files());
  const auto errors = testing::run_threads(4, [&](int thread) {
    set_current_device(0);
    const c10::StreamGuard guard(to_stream(Streams::get().make_stream(0)));
    for (int round = 0; round < 6; ++round) {
      std::vector<std::shared_ptr<KeptTensor>> kept;
      for (int i = 0; i < 5; ++i) kept.push_back(keeper.keep(filled(3000 + 500 * i, 100 * thread + i)));
      keeper.begin_backward();
      for (int i = 4; i >= 0; --i, kept.pop_back())
        TORCH_CHECK(kept.back()->bring_back().cpu().sub(100 * thread + i).abs().sum().item<float>() == 0, i);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// An engine counts the buffers of the files as its plan does, and takes their directory from either key.
TEST_P(DeviceActivations, EnginesHoldWhatWasPlanned) {
  for (const bool of_parameters : {false, true}) {
    test::Scenario scenario = test::make_scenario(/*world_size=*/2, /*stage=*/3);
    scenario.steps = 2;
    test::Scenario in_files = on_devices(scenario);
    in_files.config.offload.activations = OffloadConfig::Activations::kNvme;
    (of_parameters ? in_files.config.offload_param.nvme_path
                   : in_files.config.offload_optimizer.nvme_path) = {directory_.path()};
    int64_t staging = 0;
    for (const MemoryLine& line : expect_bits_of(scenario, in_files).memory)
      if (line.category == "swap" && line.tier == "host") staging = line.measured_peak;
    EXPECT_EQ(staging, kRecordStagingBytes);
    expect_no_race(scenario);
  }
}

TEST_P(DeviceActivations, ADirectoryThatCannotBeMadeIsRefusedOnEveryRank) {
  test::Scenario scenario = on_devices(test::make_scenario(/*world_size=*/2, /*stage=*/2));
  scenario.config.offload.activations = OffloadConfig::Activations::kNvme;
  scenario.config.offload_param.nvme_path = {"/proc/none"};
  test::ThreadWorld world(scenario);
  EXPECT_THAT(world.run([](test::Rank& rank) { rank.make_engine(); }),
              Each(HasSubstr("zero_optimization.offload_param.nvme_path: rank 0: cannot open the directory")));
}

}  // namespace
}  // namespace zeroshard::accelerator
