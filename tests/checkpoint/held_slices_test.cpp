#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/format.h"
#include "base/write_hold.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/calls_within.h"
#include "checkpoint/load.h"
#include "comm/local_comm.h"
#include "file/support.h"
#include "support/comm_world.h"
#include "support/faulty_io.h"
#include "zeroshard/error.h"

// Slices that a save in the background reads where they lie, while whoever is to change them waits.
namespace zeroshard {
namespace {

using std::chrono::seconds;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr int kGroups = 4;
constexpr int64_t kGroupNumel = 5000;  // of a group on a rank

class Held final : public SliceData {
 public:
  using BeforeRead = std::function<void()>;
  Held(std::vector<float>& values, WriteHold& hold, BeforeRead before)
      : memory_(values.data()), before_(std::move(before)), reading_(hold.read()) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    if (!reading_) throw std::logic_error("it is read when it may have changed");
    if (before_) before_();
    memory_.read(offset, bytes, to);
  }
  void write(int64_t, int64_t, const void*) override { throw std::logic_error("it is read alone"); }
  bool is_held() const override { return true; }
  void end_reading() noexcept override { reading_.reset(); }

 private:
  HostData memory_;
  BeforeRead before_;
  WriteHold::Reading reading_;
};

// A rank's share of a state: groups with two parameters each, of which `before_read` may be told.
struct HeldShare {
  explicit HeldShare(int rank_, int world_size_) : rank(rank_), world_size(world_size_), holds(kGroups) {
    for (int group = 0; group < kGroups; ++group) values.emplace_back(size_t(kGroupNumel), float(100 * group + rank));
  }

  SaveRequest request(const std::string& root, const std::function<void(int group)>& before_read = {}) {
    SaveRequest request;
    request.root = root;
    request.tag = std::string("a");
    for (int group = 0; group < kGroups; ++group) {
      const auto before = [=] {
        if (before_read) before_read(group);
      };
      const auto data = std::make_shared<Held>(values[size_t(group)], holds[size_t(group)], before);
      for (const Range part : {Range{0, 1000}, Range{1000, kGroupNumel}}) {
        StateSlice slice;
        slice.name = concat(group, ".", part.begin);
        slice.kind = "weight";
        slice.dtype = "F32";
        slice.shape = {part.size() * world_size};
        slice.elements = {rank * part.size(), (rank + 1) * part.size()};
        slice.data = data;
        slice.offset = part.begin * int64_t{sizeof(float)};
        request.slices.push_back(std::move(slice));
      }
    }
    return request;
  }
  // Waits for each group in turn, and changes it.
  void step() {
    for (int group = 0; group < kGroups; ++group) {
      holds[size_t(group)].await_readers();
      for (float& value : values[size_t(group)]) value = -1;
    }
  }

  int rank, world_size;
  std::vector<std::vector<float>> values;
  std::vector<WriteHold> holds;
};

void refuse_copy(void*, const void*, int64_t) {
  FAIL() << "what is held is not copied";
}

// Every value of the checkpoint, whichever rank wrote it, is as before the step.
void expect_saved(const std::string& root, int world_size) {
  LoadRequest request;
  request.root = root;
  request.tag = std::string("a");
  std::vector<std::vector<float>> found;
  request.wanted = [&](const Manifest& manifest, const TensorIndex&) {
    found.clear();
    std::vector<StateSlice> slices;
    for (const TensorRecord& tensor : manifest.tensors) found.emplace_back(size_t(tensor.shape[0]), -5.F);
    for (size_t i = 0; i < found.size(); ++i) {
      const TensorRecord& tensor = manifest.tensors[i];
      slices.push_back({.name = tensor.name,
                        .kind = tensor.kind,
                        .dtype = tensor.dtype,
                        .aliases = {},
                        .shape = tensor.shape,
                        .elements = {0, tensor.shape[0]},
                        .data = host_data(found[i].data())});
    }
    return slices;
  };
  const auto loaded = load_checkpoint(request, *make_single_comm(), posix_io());
  ASSERT_TRUE(loaded);
  ASSERT_EQ(found.size(), size_t(2 * kGroups));
  for (size_t i = 0; i < found.size(); ++i) {
    const float group = float(loaded->manifest.tensors[i].name[0] - '0');
    for (size_t j = 0; j < found[i].size(); ++j)
      ASSERT_EQ(found[i][j], 100 * group + float(int64_t(j) * world_size / int64_t(found[i].size()))) << i << " " << j;
  }
}

// Each group may change as soon as it is read, while the next one is not.
TEST(HeldSlices, AreReadWhereTheyLieAndMayChangeOneAfterTheOther) {
  for (const int world_size : {1, 3}) {
    const TemporaryDirectory root;
    const auto errors = testing::run_local_world(world_size, [&](Comm& comm) {
      Ledger ledger;
      AsyncSaver saver(comm, posix_io(), ledger);
      HeldShare share(comm.rank(), world_size);
      for (int time = 0; time < 2; ++time) {
        std::atomic<int> changed = 0;
        share = HeldShare(comm.rank(), world_size);
        saver.start(share.request(root.path(),
                                  [&](int group) {
                                    const auto before = [&] { return changed >= group; };
                                    EXPECT_TRUE(testing::holds_within(seconds(20), before)) << group;
                                  }),
                    refuse_copy);
        for (int group = 0; group < kGroups; ++group) {
          share.holds[size_t(group)].await_readers();
          std::fill(share.values[size_t(group)].begin(), share.values[size_t(group)].end(), -1.F);
          ++changed;
        }
        saver.wait();
        EXPECT_EQ(ledger.peak().at(Category::kCheckpointStaging, Tier::kHost), 0);
      }
    });
    EXPECT_THAT(errors, Each(""));
    expect_saved(root.path(), world_size);
  }
}

// Beside slices that are copied.
TEST(HeldSlices, OthersAreCopiedAsEver) {
  const TemporaryDirectory root;
  const auto comm = make_single_comm();
  Ledger ledger;
  AsyncSaver saver(*comm, posix_io(), ledger);
  HeldShare share(0, 1);
  std::vector<float> other(300, 7);
  SaveRequest request = share.request(root.path());
  request.slices.insert(request.slices.begin() + 3, {.name = "other",
                                                     .kind = "weight",
                                                     .dtype = "F32",
                                                     .aliases = {},
                                                     .shape = {300},
                                                     .elements = {0, 300},
                                                     .data = host_data(other.data())});
  saver.start(std::move(request),
              [](void* to, const void* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); });
  EXPECT_EQ(ledger.current().at(Category::kCheckpointStaging, Tier::kHost), 1200);
  std::fill(other.begin(), other.end(), -1.F);
  share.step();
  saver.wait();
  LoadRequest load;
  load.root = root.path();
  load.tag = std::string("a");
  load.wanted = [&](const Manifest&, const TensorIndex&) {
    return std::vector<StateSlice>{{.name = "other",
                                    .kind = "weight",
                                    .dtype = "F32",
                                    .aliases = {},
                                    .shape = {300},
                                    .elements = {0, 300},
                                    .data = host_data(other.data())}};
  };
  ASSERT_TRUE(load_checkpoint(load, *make_single_comm(), posix_io()));
  EXPECT_THAT(other, Each(7.F));
}

// Whatever call of a rank fails: nobody waits for ever, the values were read in time, and the next save succeeds.
TEST(HeldSlices, MayChangeWhateverFails) {
  int64_t failed = 0;
  bool all_seen = false;
  for (int64_t nth = 1; !all_seen; ++nth) {
    const TemporaryDirectory root;
    FaultyIo faulty(posix_io());
    faulty.fail({.op = std::nullopt, .nth = nth, .error = EIO});
    const auto errors = testing::run_local_world(2, [&](Comm& comm) {
      Ledger ledger;
      AsyncSaver saver(comm, comm.rank() == 1 ? static_cast<Io&>(faulty) : posix_io(), ledger);
      HeldShare share(comm.rank(), 2);
      saver.start(share.request(root.path()), refuse_copy);
      share.step();
      const std::string error = testing::message_of<Error>([&] { saver.wait(); });
      EXPECT_TRUE(error.empty() || error.starts_with("rank 1: ")) << error;
      if (comm.rank() == 1) faulty.heal();
      share = HeldShare(comm.rank(), 2);
      saver.start(share.request(root.path()), refuse_copy);
      share.step();
      saver.wait();
    });
    EXPECT_THAT(errors, Each("")) << nth;
    expect_saved(root.path(), 2);
    all_seen = !faulty.has_failed();
    failed += all_seen ? 0 : 1;
  }
  EXPECT_GT(failed, 5);
}

// A rank that cannot read lets its own training go on at once: the others may be writing for a long time.
TEST(HeldSlices, ARankThatCannotReadDoesNotKeepItsOwn) {
  const TemporaryDirectory root;
  std::atomic<bool> goes_on = false;
  const auto errors = testing::run_local_world(2, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, posix_io(), ledger);
    HeldShare share(comm.rank(), 2);
    saver.start(share.request(root.path(),
                              [&](int group) {
                                if (comm.rank() == 1 && group == 1) throw IoError("the swap file is gone");
                                const auto waited_for = [&] { return comm.rank() == 1 || group != 2 || goes_on; };
                                EXPECT_TRUE(testing::holds_within(seconds(20), waited_for));
                              }),
                refuse_copy);
    share.step();
    if (comm.rank() == 1) goes_on = true;
    EXPECT_THAT(testing::message_of<IoError>([&] { saver.wait(); }), HasSubstr("rank 1: the swap file is gone"));
  });
  EXPECT_THAT(errors, Each(""));
}

// What is prepared and not begun, or refused by all.
TEST(HeldSlices, ASaveThatIsRefusedKeepsNothing) {
  const TemporaryDirectory root;
  const auto comm = make_single_comm();
  Ledger ledger;
  AsyncSaver saver(*comm, posix_io(), ledger);
  HeldShare share(0, 1);
  {
    const SaveRequest request = share.request(root.path());
    saver.prepare(request);
  }
  share.step();
  share = HeldShare(0, 1);
  SaveRequest request = share.request(root / "file/under");
  testing::put(root / "file", "x");
  saver.start(std::move(request), refuse_copy);
  share.step();
  EXPECT_THROW(saver.wait(), IoError);
}

}  // namespace
}  // namespace zeroshard
