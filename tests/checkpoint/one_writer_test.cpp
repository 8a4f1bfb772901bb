#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include "base/format.h"
#include "base/process_name.h"
#include "checkpoint/store.h"
#include "checkpoint/support.h"
#include "comm/local_comm.h"
#include "file/support.h"

// Who may save to a directory, and what of others is deleted there.
namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::load;
using testing::names_in;
using testing::save;
using testing::TemporaryDirectory;

// As an engine does: `locks` are kept from save to save.
std::string save_with_locks(DirectoryLocks& locks, const std::string& root, int64_t step, const std::string& tag = "",
                            int keep = 0) {
  std::vector<float> values(testing::kNumel, float(step));
  SaveRequest request;
  request.root = root;
  request.tag = tag.empty() ? concat("global_step", step) : tag;
  request.keep = keep;
  request.step = step;
  request.locks = &locks;
  request.slices.push_back({.name = "x",
                            .kind = "weight",
                            .dtype = "F32",
                            .aliases = {},
                            .shape = {testing::kNumel},
                            .elements = {0, testing::kNumel},
                            .data = host_data(values.data())});
  try {
    save_checkpoint(request, *make_single_comm(), posix_io());
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// What `work` says in another process.
std::string in_another_process(const std::function<std::string()>& work) {
  std::array<int, 2> said{};
  EXPECT_EQ(::pipe(said.data()), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    const std::string text = work();
    ::_exit(::write(said[1], text.data(), text.size()) == ssize_t(text.size()) ? 0 : 1);
  }
  ::close(said[1]);
  std::string text(4096, '\0');
  text.resize(size_t(std::max<ssize_t>(0, ::read(said[0], text.data(), text.size()))));
  ::close(said[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  return text;
}

TEST(OneWriter, AnotherProcessIsRefusedBetweenSavesToo) {
  const TemporaryDirectory root;
  auto locks = std::make_unique<DirectoryLocks>();
  ASSERT_EQ(save_with_locks(*locks, root.path(), 1), "");
  const auto other = [&] {
    DirectoryLocks own;
    return save_with_locks(own, root.path(), 2);
  };
  EXPECT_THAT(in_another_process(other),
              AllOf(HasSubstr(root.path()), HasSubstr(concat("process ", ::getpid(), " on"))));
  ASSERT_EQ(save_with_locks(*locks, root.path(), 3), "");
  locks.reset();
  EXPECT_EQ(in_another_process(other), "");
  EXPECT_THAT(names_in(root.path()), ElementsAre("global_step1", "global_step2", "global_step3", "latest"));
}

TEST(OneWriter, EveryRankLearnsWhoSavesThere) {
  const TemporaryDirectory root;
  const DirectoryLock lock(posix_io(), root.path(), "");
  const auto other = [&] {
    std::string all;
    for (const std::string& error : save({root.path(), "a", 1})) all += error + "\n";
    return all;
  };
  const std::string said = concat(root.path(), " is in use by process ", ::getpid());
  EXPECT_THAT(in_another_process(other), AllOf(HasSubstr("rank 0: " + said), HasSubstr("\nrank 0: " + said)));
}

TEST(OneWriter, AnEngineTakesOverFromAnotherOfItsProcess) {
  const TemporaryDirectory root;
  DirectoryLocks first, second;
  ASSERT_EQ(save_with_locks(first, root.path(), 1), "");
  ASSERT_EQ(save_with_locks(second, root.path(), 2), "");
  EXPECT_THAT(save_with_locks(first, root.path(), 3), AllOf(HasSubstr(root.path()), HasSubstr("a directory for each")));
  ASSERT_EQ(save_with_locks(second, root.path(), 4), "");
  EXPECT_EQ(load({root.path()}), "4");
}

// As Accelerate saves two models, each under the name of its own.
TEST(OneWriter, EnginesThatNameTheirTagsShareADirectory) {
  const TemporaryDirectory root;
  DirectoryLocks first, second;
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_EQ(save_with_locks(first, root.path(), step, "model"), "");
    ASSERT_EQ(save_with_locks(second, root.path(), step, "model_1"), "");
  }
  EXPECT_THAT(names_in(root.path()), ElementsAre(".lock", "latest", "model", "model_1"));
  ASSERT_EQ(save_with_locks(second, root.path(), 4, "model_1", /*keep=*/1), "");  // deletes the other's
  EXPECT_THAT(save_with_locks(first, root.path(), 4, "model"), HasSubstr("a directory for each"));
}

TEST(OneWriter, SavesAtOnceInOneProcessWaitForEachOther) {
  const TemporaryDirectory root;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (int64_t step = 1; step <= 20; ++step) {
        const auto errors = save({root.path(), "same", step, /*keep=*/1});
        EXPECT_THAT(errors, Each(""));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "same"));
}

// Containers of one host may have its name and other processes: only who has the directory locked knows that they do
// not save there.
TEST(OneWriter, WhatAnotherContainerWritesIsNotSwept) {
  const TemporaryDirectory root;
  const std::string own = private_name(".tmp-", "t");
  const size_t host = own.rfind('.', own.rfind('.') - 1), place = own.find('-', host) + 1;
  std::string other = own;
  other.replace(place, 8, other.substr(place, 8) == "01234567" ? "76543210" : "01234567");
  fs::create_directory(root / other);
  Directory directory = Directory::open(posix_io(), root.path());
  sweep(directory, Others::kMayLive);
  EXPECT_THAT(names_in(root.path()), ElementsAre(other));
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("a", "latest"));
}

}  // namespace
}  // namespace zeroshard
