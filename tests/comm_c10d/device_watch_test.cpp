// The thread that watches a device, with works whose end the test decides.
#include "comm_c10d/device_watch.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
namespace zeroshard {
namespace {

using ::testing::HasSubstr;

class FakeWork final : public c10d::Work {
 public:
  bool isCompleted() override { return is_complete; }
  std::atomic<bool> is_complete = false;
};

// One rank whose device is watched.
class WatchedRank {
 public:
  WatchedRank(const c10::intrusive_ptr<c10d::Store>& store, int rank, int64_t timeout_ms,
              std::vector<ProcessId> processes = {{}, {}})
      : failure_(std::make_shared<SharedFailure>()),
        divergence_(std::make_shared<Divergence>(store, rank, int(processes.size()))),
        watch_(std::make_shared<DeviceWatch>()) {
    failure_->listen(this, [this](const std::string&) {
      const std::scoped_lock lock(mutex_);
      failed_ = true;
      changed_.notify_all();
    });
    number_ = divergence_->add_communicator();
    WatchedComm comm{rank, timeout_ms, PeerWatch(std::move(processes), 60'000), failure_, divergence_, number_, [this] {
                       const std::scoped_lock lock(mutex_);
                       return host_;
                     }};
    watching_ = std::make_unique<DeviceWatch::Watching>(watch_, std::move(comm));
  }
  ~WatchedRank() { watching_.reset(); }

  c10::intrusive_ptr<FakeWork> call(std::string_view tag) {
    Op op(OpKind::kAllGather, 4, DType::kFloat32, tag);
    op.seq = ++seq_;
    hash_ = hash_ * 31 + std::hash<std::string>()(op.text());
    divergence_->note(number_, op, hash_);
    auto work = c10::make_intrusive<FakeWork>();
    watching_->note(op, work);
    return work;
  }
  void break_host(const std::string& why) {
    const std::scoped_lock lock(mutex_);
    host_ = why;
  }
  const DeviceWatch::Watching* watching() const { return watching_.get(); }
  bool failed() const { return failure_->happened(); }
  std::string failure() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failed_; });
    return failure_->text();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool failed_ = false;
  std::string host_;
  std::shared_ptr<SharedFailure> failure_;
  std::shared_ptr<Divergence> divergence_;
  std::shared_ptr<DeviceWatch> watch_;
  size_t number_ = 0;
  uint64_t seq_ = 0, hash_ = 0;
  std::unique_ptr<DeviceWatch::Watching> watching_;
};

c10::intrusive_ptr<c10d::Store> make_store() {
  return c10::make_intrusive<c10d::HashStore>();
}

TEST(DeviceWatch, NamesARankThatDoesNotCome) {
  const auto store = make_store();
  WatchedRank first(store, 0, /*timeout_ms=*/2500), second(store, 1, /*timeout_ms=*/60'000);
  first.call("both")->is_complete = true;
  second.call("both")->is_complete = true;
  first.call("unit 1");
  const std::string text = first.failure();
  EXPECT_THAT(text, HasSubstr("rank 0: the device waits in collective #2 all_gather"));
  EXPECT_THAT(text, HasSubstr("unit 1"));
  EXPECT_THAT(text, HasSubstr("not known to have called it: rank 1 (last in #1)"));
  EXPECT_EQ(second.failure(), text);  // the other rank is told, though it waits for nothing
}

TEST(DeviceWatch, NamesBothCallsOfRanksThatDiffer) {
  const auto store = make_store();
  WatchedRank first(store, 0, /*timeout_ms=*/600'000), second(store, 1, /*timeout_ms=*/600'000);
  first.call("left")->is_complete = true;  // equal sizes: both end, with mixed data
  second.call("right")->is_complete = true;
  first.call("next");
  for (WatchedRank* const rank : {&first, &second}) {
    const std::string text = rank->failure();
    EXPECT_THAT(text, HasSubstr("ranks disagree: in collective #1 rank 0 called all_gather"));
    EXPECT_THAT(text, HasSubstr("right"));
  }
}

TEST(DeviceWatch, HearsThatTheHostsCommunicatorIsBroken) {
  WatchedRank rank(make_store(), 0, /*timeout_ms=*/600'000);
  rank.call("unit 1");
  rank.break_host("disk full [reported by rank 1]");
  EXPECT_THAT(rank.failure(), HasSubstr("disk full [reported by rank 1]"));
}

TEST(DeviceWatch, NamesARankThatDied) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  WatchedRank rank(make_store(), 0, /*timeout_ms=*/600'000, {this_process(), {int32_t(child), 0}});
  rank.call("unit 1");
  ::kill(child, SIGKILL);
  EXPECT_THAT(rank.failure(), HasSubstr("rank 1 (pid " + std::to_string(child) + ") died"));
  ::waitpid(child, nullptr, 0);
}

TEST(DeviceWatch, ARankThatIsGoneMattersOnlyToWhoWaits) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  const auto store = make_store();
  WatchedRank idle(store, 0, /*timeout_ms=*/600'000, {this_process(), {int32_t(child), 0}});
  WatchedRank busy(make_store(), 0, /*timeout_ms=*/600'000, {this_process(), {int32_t(child), 0}});
  idle.call("unit 1")->is_complete = true;
  busy.call("unit 1");
  EXPECT_THAT(busy.failure(), HasSubstr("died"));
  EXPECT_FALSE(idle.failed());
  ::waitpid(child, nullptr, 0);
}

TEST(DeviceWatch, LeavesTheDeviceToACallOfTheEngines) {
  WatchedRank attended(make_store(), 0, /*timeout_ms=*/1), first(make_store(), 0, /*timeout_ms=*/1),
      second(make_store(), 0, /*timeout_ms=*/1);
  {
    const DeviceWatch::Watching::Attended here(attended.watching());
    attended.call("unit 1");
    // While the second goes from its call to its failure, all that have called before are looked at as often.
    for (WatchedRank* const alone : {&first, &second}) {
      alone->call("unit 1");
      alone->failure();
    }
    EXPECT_FALSE(attended.failed());
  }
  EXPECT_THAT(attended.failure(), HasSubstr("no progress"));
}

TEST(DeviceWatch, ManyCallsAreFollowedToTheOldestThatIsNotComplete) {
  WatchedRank rank(make_store(), 0, /*timeout_ms=*/1500);
  for (int i = 0; i < 100; ++i) rank.call("early")->is_complete = true;
  rank.call("stuck");
  for (int i = 0; i < 20; ++i) rank.call("late");
  const std::string text = rank.failure();
  EXPECT_THAT(text, HasSubstr("#101"));
  EXPECT_THAT(text, HasSubstr("stuck"));
}

TEST(DeviceWatch, EndsWithItsSubjectAndBeginsAgain) {
  const auto store = make_store();
  for (int i = 0; i < 3; ++i) {
    WatchedRank rank(store, 0, /*timeout_ms=*/600'000);
    rank.call("unit 1");
    if (i == 1) {
      rank.break_host("first");
      rank.failure();
    }
    EXPECT_EQ(rank.failed(), i == 1);
  }
}

}  // namespace
}  // namespace zeroshard
