#include "file/directory_lock.h"

#include <gmock/gmock.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "base/process_name.h"
#include "file/support.h"
#include "support/around_io.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::contents_of;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::put;
using testing::TemporaryDirectory;

constexpr std::string_view kAdvice = "Choose another directory";

DirectoryLock lock(const TemporaryDirectory& root, Io& io = posix_io()) {
  return DirectoryLock(io, root.path(), kAdvice);
}

std::string refusal(const TemporaryDirectory& root, Io& io = posix_io()) {
  return message_of<IoError>([&] { lock(root, io); });
}

// A process that has done `work` and then waits to be killed.
class Waiting {
 public:
  explicit Waiting(const std::function<void()>& work) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      work();
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    ::close(ready[1]);
    char done = 0;
    EXPECT_EQ(::read(ready[0], &done, 1), 1);
    ::close(ready[0]);
  }
  ~Waiting() { end(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

// A file system that has no locks.
const auto kPlainly = [](IoOp, const auto& call) { return call(); };
struct NoLocks final : testing::AroundIo<decltype(kPlainly)> {
  NoLocks() : AroundIo(posix_io(), kPlainly) {}
  int lock(int) override { return -ENOLCK; }
};

TEST(DirectoryLock, AnotherProcessIsRefusedAndToldWhoHasIt) {
  const TemporaryDirectory root;
  Waiting holder([&] { new DirectoryLock(lock(root)); });
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  EXPECT_THAT(refusal(root), AllOf(HasSubstr(root.path()), HasSubstr(concat("process ", holder.pid(), " on host '")),
                                   HasSubstr(host.data()), HasSubstr(std::string(kAdvice))));
  holder.end();
  const DirectoryLock mine = lock(root);  // what was killed stands in nobody's way
  EXPECT_TRUE(mine.is_sure());
  EXPECT_THAT(contents_of(root / ".lock"), HasSubstr(process_name()));
}

TEST(DirectoryLock, LeavesNothingWhenItGoes) {
  const TemporaryDirectory root;
  { const DirectoryLock mine = lock(root); }
  EXPECT_TRUE(fs::is_empty(root.path()));
  Waiting other([&] { new DirectoryLock(lock(root)); });  // and is free
  EXPECT_NE(refusal(root), "");
}

// Such as a worker of a data loader, that outlives its parent by some seconds.
TEST(DirectoryLock, AForkedChildDoesNotKeepIt) {
  for (const bool destroys : {true, false}) {  // nor does a child end it that destroys what it has inherited
    const TemporaryDirectory root;
    std::array<int, 2> child{};
    ASSERT_EQ(::pipe(child.data()), 0);
    Waiting holder([&] {
      auto* const held = new DirectoryLock(lock(root));
      if (::fork() != 0) return;
      if (destroys) delete held;
      const pid_t forked = ::getpid();
      if (::write(child[1], &forked, sizeof(forked)) == ssize_t(sizeof(forked))) ::pause();
      ::_exit(1);
    });
    pid_t forked = 0;
    ASSERT_EQ(::read(child[0], &forked, sizeof(forked)), ssize_t(sizeof(forked)));
    EXPECT_NE(refusal(root), "");
    holder.end();
    EXPECT_EQ(refusal(root), "") << destroys;
    ::kill(forked, SIGKILL);
    for (const int fd : child) ::close(fd);
  }
}

// A lock that is taken from the time a fork begins until it has ended, or for a while if the fork waits for it.
struct DuringAFork final : testing::AroundIo<decltype(kPlainly)> {
  DuringAFork() : AroundIo(posix_io(), kPlainly) {}
  int lock(int fd) override {
    taking.set_value();
    forked.get_future().wait_for(std::chrono::milliseconds(200));
    return AroundIo::lock(fd);
  }
  std::promise<void> forking, taking, forked;
};

// As when a checkpoint is saved in the background. A process of its own: the lock is its first.
TEST(DirectoryLock, AChildForkedWhileTheFirstLockIsTakenEnds) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer waits in the child for a thread that only its parent has";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fork_during_lock = [] {
    const TemporaryDirectory root;
    static DuringAFork io;
    std::optional<DirectoryLock> held;
    std::thread other([&] {
      io.forking.get_future().wait();
      held.emplace(io, root.path(), kAdvice);
    });
    const auto let_it_be_taken = [] {
      io.forking.set_value();
      io.taking.get_future().wait();
    };
    ::pthread_atfork(let_it_be_taken, nullptr, nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      std::exit(0);
    }
    io.forked.set_value();
    other.join();
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  };
  EXPECT_EXIT(std::_Exit(fork_during_lock()), ::testing::ExitedWithCode(0), "");
}

TEST(DirectoryLock, IsSharedWithinAProcessUntilTheLastGoes) {
  const TemporaryDirectory root;
  auto first = std::make_unique<DirectoryLock>(lock(root));
  const DirectoryLock second = lock(root);
  first.reset();
  int status = 0;
  const pid_t other = ::fork();
  if (other == 0) ::_exit(refusal(root).empty() ? 1 : 0);
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST(DirectoryLock, OneUserInAProcessTakesOverFromAnother) {
  const TemporaryDirectory root;
  DirectoryLock first = lock(root), second = lock(root);
  for (int i = 0; i < 3; ++i) first.take_turn(kAdvice);
  for (int i = 0; i < 3; ++i) second.take_turn(kAdvice);
  EXPECT_THAT(message_of<StateError>([&] { first.take_turn(kAdvice); }),
              AllOf(HasSubstr(root.path()), HasSubstr(std::string(kAdvice))));
  second.take_turn(kAdvice);
}

TEST(DirectoryLock, WhoShareTakeTurnsInAnyOrder) {
  const TemporaryDirectory root;
  DirectoryLock first = lock(root), second = lock(root);
  for (int i = 0; i < 3; ++i) {
    first.take_turn(kAdvice, /*share=*/true);
    second.take_turn(kAdvice, /*share=*/true);
  }
  first.take_turn(kAdvice);
  first.take_turn(kAdvice);
  EXPECT_THROW(second.take_turn(kAdvice, /*share=*/true), StateError);
  first.take_turn(kAdvice, /*share=*/true);
  DirectoryLock third = lock(root);
  third.take_turn(kAdvice, /*share=*/true);
  first.take_turn(kAdvice, /*share=*/true);
  third.take_turn(kAdvice);
  EXPECT_THROW(first.take_turn(kAdvice, /*share=*/true), StateError);
}

TEST(DirectoryLock, ATurnWaitsForTheOneBefore) {
  const TemporaryDirectory root;
  DirectoryLock first = lock(root), second = lock(root);
  bool ended = false;  // guarded by the turn
  auto turn = first.take_turn(kAdvice);
  std::thread next([&] {
    const auto mine = second.take_turn(kAdvice);
    EXPECT_TRUE(ended);
  });
  ended = true;
  turn.unlock();
  next.join();
}

TEST(DirectoryLock, ADirectoryThatWasMadeAnewIsAnotherOne) {
  const TemporaryDirectory root;
  DirectoryLocks locks;
  const std::string path = root / "run";
  const DirectoryLock& before = locks.of(Directory::create(posix_io(), path), kAdvice);
  EXPECT_EQ(&locks.of(Directory::open(posix_io(), path), kAdvice), &before);
  fs::remove_all(path);
  const Directory made = Directory::create(posix_io(), path);
  EXPECT_TRUE(locks.of(made, kAdvice).keeps(made));
}

TEST(DirectoryLock, WithoutLocksTheTextDecides) {
  const TemporaryDirectory root;
  NoLocks io;
  Waiting holder([&] { new DirectoryLock(lock(root, io)); });
  EXPECT_THAT(refusal(root, io), AllOf(HasSubstr(concat("process ", holder.pid())), Not(HasSubstr("delete"))));
  const std::string text = contents_of(root / ".lock");
  holder.end();
  EXPECT_EQ(refusal(root, io), "");  // it is no more
  put(root / ".lock", "elsewhere\n1\nelsewhere.1-0123\n");
  EXPECT_THAT(refusal(root, io),
              AllOf(HasSubstr("process 1 on host 'elsewhere'"), HasSubstr("delete " + root / ".lock")));
  put(root / ".lock", "half of a te");
  EXPECT_FALSE(lock(root, io).is_sure());
}

TEST(DirectoryLock, WhatIsNoFileIsRefused) {
  const TemporaryDirectory root;
  fs::create_directory(root / ".lock");
  EXPECT_THAT(refusal(root), HasSubstr(root / ".lock"));
  fs::remove(root / ".lock");
  put(root / "elsewhere", "untouched");
  fs::create_symlink("elsewhere", root / ".lock");
  EXPECT_THAT(refusal(root), HasSubstr(root / ".lock"));
  EXPECT_EQ(contents_of(root / "elsewhere"), "untouched");
}

TEST(DirectoryLock, AnyFailingCallLeavesItFree) {
  for (int64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100);
    const TemporaryDirectory root;
    FaultyIo faulty(posix_io());
    faulty.fail({.op = std::nullopt, .nth = n, .error = EIO});
    refusal(root, faulty);
    EXPECT_EQ(faulty.open_files(), 0);
    EXPECT_EQ(refusal(root), "");
    if (!faulty.has_failed()) break;
  }
}

TEST(ProcessName, OfAnotherBootOrNamespaceItIsNotKnown) {
  const std::string own = process_name();
  EXPECT_FALSE(has_ended(own));
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const size_t dot = own.find('.'), place = own.find('-', dot) + 1, random = own.rfind('-');
  const std::string here = concat(own.substr(0, dot + 1), dead, "-");
  EXPECT_TRUE(has_ended(here + own.substr(place)));
  EXPECT_TRUE(has_ended(here + "0123456789abcdef"));  // as earlier versions said it
  const std::string elsewhere = here + "01234567" + own.substr(random);
  EXPECT_FALSE(has_ended(elsewhere));
  EXPECT_TRUE(is_of_another_place(elsewhere) && is_of_this_host(elsewhere));
  EXPECT_FALSE(is_of_another_place(own) || is_of_another_place("other.1-01234567-0123"));
}

}  // namespace
}  // namespace zeroshard
