#include "checkpoint/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/format.h"
#include "checkpoint/load.h"
#include "checkpoint/support.h"
#include "file/support.h"
#include "support/comm_world.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::save;
using testing::TemporaryDirectory;

// Short: a rank that waits for one that has failed alone is the bug.
CommOptions short_timeout() {
  CommOptions options;
  options.timeout_ms = 3000;
  return options;
}

std::vector<StateSlice> nothing(const Manifest&, const TensorIndex&) {
  return {};
}

// Each of two ranks asks for what `change` makes of the same request; what they throw.
std::vector<std::string> load_with(const std::string& root, const std::function<void(LoadRequest&, int rank)>& change) {
  return testing::run_local_world(
      2,
      [&](Comm& comm) {
        LoadRequest request{root, {}, false, nothing};
        change(request, comm.rank());
        load_checkpoint(request, comm, posix_io());
      },
      short_timeout());
}

TEST(LoadAgreement, RanksThatAskForDifferentThingsAllFailAlike) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  ASSERT_THAT(save({root.path(), "b", 2}), Each(""));
  const std::vector<std::function<void(LoadRequest&)>> changes = {
      [](LoadRequest& request) { request.tag = "a"; },
      [](LoadRequest& request) { request.tag = "../up"; },
      [](LoadRequest& request) { request.strict = true; },
      [](LoadRequest& request) { request.root += "/a"; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    for (const int odd : {0, 1}) {
      SCOPED_TRACE(concat("change ", i, " on rank ", odd));
      const auto errors = load_with(root.path(), [&](LoadRequest& request, int rank) {
        if (rank == odd) changes[i](request);
      });
      EXPECT_THAT(errors,
                  Each(AllOf(HasSubstr("rank 1: "), HasSubstr("rank 0 "), HasSubstr("the same on every rank"))));
      EXPECT_EQ(errors[0], errors[1]);
    }
  }
}

TEST(LoadAgreement, AnErrorOfOneRankAloneIsEverybodys) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  ASSERT_THAT(save({root.path(), "b", 2}), Each(""));
  // No sign of damage in the checkpoint: no older one is taken instead.
  const auto errors = load_with(root.path(), [&](LoadRequest& request, int rank) {
    if (rank == 1) request.wanted = [](const auto&, const auto&) -> std::vector<StateSlice> { throw std::bad_alloc(); };
  });
  EXPECT_THAT(errors, Each(AllOf(::testing::StartsWith("rank 1: "), HasSubstr("out of memory"))));
}

// Ranks as processes in directories of their own: what a file system does that is not shared.
TEST(LoadAgreement, RanksThatSeeOtherFilesAreNamed) {
  const TemporaryDirectory places;
  for (const int rank : {0, 1}) fs::create_directory(places / std::to_string(rank));
  const auto load_apart = [&] {
    return testing::run_shm_processes(
        2,
        [&](Comm& comm) {
          if (::chdir((places / std::to_string(comm.rank())).c_str()) != 0) throw std::runtime_error("chdir");
          const auto loaded = load_checkpoint({"run", {}, false, nothing}, comm, posix_io());
          throw std::runtime_error(loaded ? concat("loaded step ", loaded->manifest.step) : "found nothing");
        },
        short_timeout());
  };
  ASSERT_THAT(save({places / "1/run", "a", 2}), Each(""));
  EXPECT_THAT(load_apart(), Each(AllOf(HasSubstr("rank 1: run is there"), HasSubstr("rank 0"))));
  ASSERT_THAT(save({places / "0/run", "a", 1}), Each(""));
  EXPECT_THAT(load_apart(), Each(AllOf(HasSubstr("rank 1: run/a/manifest.json"), HasSubstr("rank 0"))));
  fs::remove_all(places / "0/run");
  fs::copy(places / "1/run", places / "0/run", fs::copy_options::recursive);
  EXPECT_THAT(load_apart(), Each("loaded step 2"));
}

TEST(Together, KeepsTheKindOfAnError) {
  const auto errors = testing::run_local_world(2, [&](Comm& comm) {
    const auto fail_with = [&](auto error) {
      together(comm, "test", [&] {
        if (comm.rank() == 1) throw error;
      });
    };
    EXPECT_THROW(fail_with(ValueError("x")), ValueError);
    EXPECT_THROW(fail_with(StateError("x")), StateError);
    EXPECT_THROW(fail_with(IoError("x")), IoError);
    EXPECT_THROW(fail_with(std::runtime_error("x")), IoError);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace zeroshard
