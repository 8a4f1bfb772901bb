#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "comm/control_block.h"
#include "comm/local_comm.h"
#include "comm/peer_watch.h"
#include "comm/wait_graph.h"
#include "support/comm_conformance.h"
#include "support/comm_world.h"
#include "support/expect.h"
#include "support/test_comms.h"

namespace zeroshard {
namespace {

using testing::Clock, testing::expect_contains, testing::seconds_since;

#if defined(__SANITIZE_THREAD__)
#define SKIP_WITHOUT_FORK() GTEST_SKIP() << "fork() under ThreadSanitizer"
#else
#define SKIP_WITHOUT_FORK() static_cast<void>(0)
#endif

// Inputs stay until the end of the process: peers may read them after this rank has failed or left.
std::vector<float>& kept_buffer(size_t numel) {
  static std::mutex mutex;
  static std::deque<std::vector<float>> buffers;
  const std::scoped_lock lock(mutex);
  return buffers.emplace_back(numel, 1.0f);
}

void gather(Comm& comm, int64_t numel, std::string_view tag) {
  std::vector<float>& full = kept_buffer(static_cast<size_t>(numel * comm.world_size()));
  comm.all_gather({full.data(), numel * comm.world_size(), DType::kFloat32},
                  Span{full.data() + comm.rank() * numel, numel, DType::kFloat32}, tag)
      ->wait();
}

// Rank 2 calls something else than the others as the third collective.
void diverge(Comm& comm, int64_t numel, std::string_view tag) {
  comm.barrier("start");
  gather(comm, 8, "same");
  if (comm.rank() == 2) {
    gather(comm, numel, tag);
  } else {
    gather(comm, 4, "model.layers.3");
  }
  comm.barrier("end");
}

TEST(Mismatch, IsNamedOnAllRanks) {
  struct Case {
    int64_t numel;
    const char* tag;
  };
  for (const Case& each : {Case{4, "model.layers.4"}, Case{5, "model.layers.3"}}) {
    const auto body = [&](Comm& comm) { diverge(comm, each.numel, each.tag); };
    for (const auto& errors : {testing::run_local_world(4, body), testing::run_shm_threads(4, body)})
      for (const std::string& error : errors) {
        expect_contains(error, {"rank 2 called all_gather('" + std::string(each.tag) + "', " +
                                    std::to_string(each.numel * 4) + " bytes fp32)",
                                "called all_gather('model.layers.3', 16 bytes fp32)", "as collective #3"});
        EXPECT_EQ(error, errors[0]);
      }
  }
}

void exchange(Comm& comm, const std::vector<int64_t>& counts) {
  std::vector<float> in(8), out(8);
  const size_t rank = size_t(comm.rank());
  comm.all_to_all_v({out.data(), counts[rank] + counts[2 + rank], DType::kFloat32},
                    {in.data(), counts[2 * rank] + counts[2 * rank + 1], DType::kFloat32}, counts, "x")
      ->wait();
}

TEST(Mismatch, OfKindDtypeRootAndReduction) {
  using Body = std::function<void(Comm&)>;
  std::vector<float> unused(16);
  const auto span = [&](int64_t numel, DType dtype) { return Span{unused.data(), numel, dtype}; };
  const std::vector<std::pair<Body, Body>> pairs = {
      {[](Comm& comm) { comm.barrier("x"); }, [](Comm& comm) { gather(comm, 1, "x"); }},
      {[&](Comm& comm) { comm.broadcast(span(4, DType::kFloat32), 0, "x")->wait(); },
       [&](Comm& comm) { comm.broadcast(span(4, DType::kFloat32), 1, "x")->wait(); }},
      {[&](Comm& comm) { comm.broadcast(span(0, DType::kFloat32), 0, "x")->wait(); },
       [&](Comm& comm) { comm.broadcast(span(0, DType::kBFloat16), 0, "x")->wait(); }},
      {[](Comm& comm) {
         int64_t a = 0;
         comm.all_reduce({&a, 1, DType::kOther8}, ReduceOp::kSum, "x")->wait();
       },
       [](Comm& comm) {
         int64_t a = 0;
         comm.all_reduce({&a, 1, DType::kOther8}, ReduceOp::kMax, "x")->wait();
       }},
      {[](Comm& comm) {
         exchange(comm, {2, 3, 1, 1});
       },
       [](Comm& comm) {
         exchange(comm, {1, 3, 1, 1});
       }},  // the same sizes, but for a piece of rank 0 to itself
      {[](Comm& comm) { comm.allocate(100, "x"); }, [](Comm& comm) { comm.allocate(101, "x"); }},
  };
  for (const auto& [first, second] : pairs)
    for (const std::string& error :
         testing::run_local_world(2, [&](Comm& comm) { comm.rank() == 0 ? first(comm) : second(comm); }))
      expect_contains(error, {"ranks disagree", "rank 0 called", "rank 1 called", "collective #1"});
}

// Several communicators of the same ranks, as an engine has them.
class WaitGraphTest : public ::testing::Test {
 protected:
  static std::vector<std::string> run(int world_size, const std::function<void(std::vector<Comm*>)>& body,
                                      CommOptions options = {}) {
    options.wait_graph = std::make_shared<WaitGraph>(options.numbers);
    std::vector<std::vector<std::unique_ptr<Comm>>> comms;
    for (int i = 0; i < 3; ++i) comms.push_back(make_local_world(world_size, options));
    return testing::run_threads(world_size, [&](int rank) {
      const auto own = [&](int i) { return comms[size_t(i)][size_t(rank)].get(); };
      body({own(0), own(1), own(2)});
    });
  }
};

TEST_F(WaitGraphTest, RanksThatWaitInDifferentCommunicatorsAreNamedOnAllRanks) {
  for (const int world_size : {2, 3, 7}) {
    const auto start = Clock::now();
    const auto errors = run(world_size, [](const std::vector<Comm*>& comms) {
      comms[0]->barrier("start");
      if (comms[0]->rank() == 1) comms[1]->barrier("step end");
      gather(*comms[0], 4, "model.layers.3");
      if (comms[0]->rank() != 1) comms[1]->barrier("step end");
    });
    EXPECT_LT(seconds_since(start), 20);
    for (const std::string& error : errors)
      expect_contains(error, {"ranks disagree: ", "rank 1 called collective #1 barrier('step end')",
                              "called collective #2 all_gather('model.layers.3', 16 bytes fp32) and waits for rank 1"});
  }
}

// 0 waits for 1, which waits for 2, which waits for 0; no two for each other.
TEST_F(WaitGraphTest, ACycleOfThreeIsFound) {
  CommOptions options;
  options.numbers = {6, 1};
  const auto body = [](const std::vector<Comm*>& comms) {
    const int rank = comms[0]->rank();
    std::unique_ptr<Work> begun;
    std::vector<float>& full = kept_buffer(12);
    if (rank == 0)
      begun = comms[1]->all_gather({full.data(), 12, DType::kFloat32}, Span{full.data(), 4, DType::kFloat32}, "b");
    gather(*comms[size_t(rank)], 4, std::string("abc").substr(size_t(rank), 1));
  };
  for (const std::string& error : run(3, body, options))
    expect_contains(error, {"rank 6 called collective #1 all_gather('a', 16 bytes fp32) and waits for rank 7",
                            "rank 7 called collective #1 all_gather('b', 16 bytes fp32) and waits for rank 8",
                            "rank 8 called collective #1 all_gather('c', 16 bytes fp32) and waits for rank 6"});
}

// Or a rank that is gone would be waited for once more in each.
TEST_F(WaitGraphTest, CommunicatorsFailTogether) {
  CommOptions options;
  options.timeout_ms = 300;
  std::atomic<bool> over{false};
  const auto wait_until_over = [&] {
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  const auto body = [&](const std::vector<Comm*>& comms) {
    if (comms[0]->rank() == 1) return wait_until_over();
    std::vector<std::string> failures;
    for (Comm* const comm : comms) {
      try {
        comm->barrier(failures.empty() ? "alone" : "later");
      } catch (const CommError& error) {
        failures.emplace_back(error.what());
      }
    }
    over = true;
    testing::require(failures.size() == 3, failures.size());
    expect_contains(failures[0], {"barrier('alone'"});
    for (const std::string& failure : failures) EXPECT_TRUE(failure.starts_with(failures[0])) << failure;
  };
  for (const std::string& error : run(2, body, options)) EXPECT_EQ(error, "");
}

TEST_F(WaitGraphTest, RanksThatAreMerelySlowAreNotFound) {
  const auto errors = run(4, [](const std::vector<Comm*>& comms) {
    for (int i = 0; i < 8; ++i) {
      if (i % 4 == comms[0]->rank())
        std::this_thread::sleep_for(std::chrono::milliseconds(350));  // some looks of those that wait
      gather(*comms[0], 4, "a");
      comms[1]->barrier("b");
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// A control block alone, as the wait graph sees it.
class BareMemory final : public DirectMemory {
 public:
  explicit BareMemory(int world_size) : memory_(ControlBlock::bytes(world_size) + 64), control_(place(), world_size) {
    ControlBlock::create(place(), world_size);
  }
  ControlBlock& control() override { return control_; }
  std::optional<PeerAddress> publish(const void*, int64_t, uint64_t) override { return std::nullopt; }
  const void* read(int, const PeerAddress&) override { return nullptr; }
  SegmentGrant create(int64_t) override { return {}; }
  void attach(int, const SegmentGrant&, int64_t) override {}
  void attached(const SegmentGrant&) override {}
  void free(uint64_t) noexcept override {}

 private:
  void* place() {
    void* aligned = memory_.data();
    size_t space = memory_.size();
    return std::align(64, memory_.size() - 64, aligned, space);
  }
  std::vector<std::byte> memory_;
  ControlBlock control_;
};

// Two ranks in turn: each waits for what the other is about to post, and looks for cycles all the while.
TEST(WaitGraph, RanksThatGoOnAreNeverACycle) {
  const auto memory = std::make_shared<BareMemory>(2);
  WaitGraph graph;
  graph.add(memory);
  std::atomic<bool> over{false};
  std::atomic<uint64_t> found{0};
  const auto play = [&](int rank) {
    RankControl& own = memory->control().rank(rank);
    RankControl& peer = memory->control().rank(1 - rank);
    for (uint64_t seq = 1; !over && found == 0; ++seq) {
      if (rank == 1) own.posted = seq;
      const Awaited awaited{1 - rank, Awaited::Progress::kPosted, seq};
      own.awaited.store(awaited);
      while (!peer.has_reached(awaited) && !over) {
        found += graph.find_cycle(rank) ? 1 : 0;
        if (seq % 16 == 0) std::this_thread::yield();  // there may be one core for both
      }
      own.awaited.store(std::nullopt);
      if (rank == 0) own.posted = seq;
    }
  };
  std::thread other([&] { play(1); });
  std::thread clock([&] {
    const auto start = Clock::now();
    while (seconds_since(start) < 0.5 || (memory->control().rank(0).posted < 100 && seconds_since(start) < 60))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    over = true;
  });
  play(0);
  other.join();
  clock.join();
  EXPECT_EQ(found, 0);
  EXPECT_GE(memory->control().rank(0).posted, 100);
}

TEST(Abort, GivesEveryRankTheSameReasonHoweverTheyRace) {
  constexpr int kWorld = 4, kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::byte> memory(ControlBlock::bytes(kWorld) + 64);
    void* aligned = memory.data();
    size_t space = memory.size();
    std::align(64, ControlBlock::bytes(kWorld), aligned, space);
    ControlBlock::create(aligned, kWorld);
    std::atomic<int> ready{0};
    std::array<std::optional<std::string>, kWorld> reasons;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kWorld; ++rank)
      ranks.emplace_back([&, rank] {
        ControlBlock control(aligned, kWorld);
        ready.fetch_add(1);
        while (ready.load() < kWorld) std::this_thread::yield();
        control.abort(rank, std::string(1000, static_cast<char>('a' + rank)));
        reasons[static_cast<size_t>(rank)] = control.aborted();
      });
    for (std::thread& each : ranks) each.join();
    for (const auto& reason : reasons) {
      ASSERT_TRUE(reason.has_value()) << "in round " << round;
      ASSERT_EQ(reason, reasons[0]);
    }
  }
}

TEST(Abort, ReachesRanksThatWaitAndLaterCalls) {
  const auto start = Clock::now();
  const auto errors = testing::run_shm_threads(3, [](Comm& comm) {
    if (comm.rank() == 1) {
      comm.abort("out of disk space");
    }
    try {
      comm.barrier("never");
    } catch (const CommError&) {
    }
    gather(comm, 1, "after");
  });
  for (const std::string& error : errors) expect_contains(error, {"out of disk space", "rank 1"});
  EXPECT_LT(seconds_since(start), 5);
}

TEST(FaultComm, FailsTheNthCallOnEveryRank) {
  for (int64_t n = 1; n <= 5; ++n)
    for (const std::string& error : testing::run_local_world(3, [n](Comm& inner) {
           FaultComm comm(inner, inner.rank() == 1 ? n : 1000);
           for (int i = 0; i < 3; ++i) {
             comm.barrier("b");
             gather(comm, 2, "g");
           }
         }))
      expect_contains(error, {"injected fault at call " + std::to_string(n)});
}

TEST(Leaving, IsNoErrorForRanksThatNeedNothingMore) {
  const auto errors = testing::run_local_world(3, [](Comm& comm) {
    gather(comm, 100, "last");
    comm.barrier("end");
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others leave
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Leaving, EarlyIsNamed) {
  for (int world_size : {2, 3}) {
    const auto errors = testing::run_local_world(world_size, [](Comm& comm) {
      gather(comm, 100, "both");
      if (comm.rank() != 1) gather(comm, 100, "more");
    });
    expect_contains(errors[0], {"rank 1 left the group", "collective #1 all_gather('both'", "#2 all_gather('more'"});
  }
}

TEST(SlowPeer, FailsOnlyAfterTheTimeout) {
  CommOptions options;
  options.timeout_ms = 300;
  std::atomic<bool> done{false};
  const auto errors = testing::run_local_world(
      2,
      [&](Comm& comm) {
        if (comm.rank() == 0) {
          comm.barrier("slow");
        } else {
          while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        if (comm.rank() == 1) comm.barrier("slow");
      },
      [&] {
        std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(700));  // longer than the timeout
          done = true;
        }).detach();
        return options;
      }());
  for (const std::string& error : errors) expect_contains(error, {"rank 1 made no progress", "barrier('slow')"});
}

// Rank 1 gathers a few times and is then killed or stopped; what the others say, and after how long.
struct Victim {
  std::vector<std::string> errors;
  double seconds = 0;
  pid_t pid = 0;
};

Victim strike(int signal, const CommOptions& options) {
  testing::ForkedWorld world(3, [&](int rank, Bootstrap& bootstrap) {
    ShmComm comm(bootstrap, options);
    for (int i = 0; i < 5; ++i) gather(comm, 1000, "early");
    if (rank == 1) ::raise(signal);
    gather(comm, 1000, "model.layers.3");
    comm.barrier("end");
  });
  const auto start = Clock::now();
  Victim victim;
  victim.pid = world.pid(1);
  victim.errors = {world.join(0), "", world.join(2)};
  victim.seconds = seconds_since(start);
  return victim;
}

TEST(DeadPeer, IsNamedWithinASecond) {
  SKIP_WITHOUT_FORK();
  for (const int signal : {SIGKILL, SIGSEGV}) {
    const Victim victim = strike(signal, {});
    EXPECT_LT(victim.seconds, 2);
    for (const size_t rank : {0u, 2u})
      expect_contains(victim.errors[rank], {"rank 1 (pid " + std::to_string(victim.pid) + ") died",
                                            "collective #5 all_gather('early'", "#6 all_gather('model.layers.3'"});
  }
}

TEST(StoppedPeer, IsNamedAfterTheStallTimeout) {
  SKIP_WITHOUT_FORK();
  CommOptions options;
  options.stall_timeout_ms = 500;
  const Victim victim = strike(SIGSTOP, options);
  EXPECT_GT(victim.seconds, 0.3);
  EXPECT_LT(victim.seconds, 3);
  for (const size_t rank : {0u, 2u})
    expect_contains(victim.errors[rank],
                    {"rank 1 (pid " + std::to_string(victim.pid) + ") has been stopped", "'model.layers.3'"});
}

TEST(StoppedPeer, ThatGoesOnInTimeIsForgiven) {
  SKIP_WITHOUT_FORK();
  CommOptions options;
  options.stall_timeout_ms = 3000;
  testing::ForkedWorld world(2, [&](int rank, Bootstrap& bootstrap) {
    ShmComm comm(bootstrap, options);
    if (rank == 1) ::raise(SIGSTOP);
    gather(comm, 10, "after");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // it has stopped; the other waits for it
  ::kill(world.pid(1), SIGCONT);
  EXPECT_EQ(world.join(0), "");
  EXPECT_EQ(world.join(1), "");
}

TEST(Leaving, ProcessThatExitsEarlyDoesNotHarmItsPeersLastRead) {
  SKIP_WITHOUT_FORK();
  testing::ForkedWorld world(2, [&](int rank, Bootstrap& bootstrap) {
    ShmComm comm(bootstrap, {});
    testing::Buffer full(comm, 2000, true);
    float* own = full.data() + rank * 1000;
    std::fill_n(own, 1000, static_cast<float>(rank + 1));
    const auto work = comm.all_gather(full.span(), full.slice(rank * 1000, 1000), "last");
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the other has exited
    work->wait();
    if (rank == 1) ::_exit(0);  // no destructor
    for (int i = 0; i < 1000; ++i) testing::require(full.data()[1000 + i] == 2.0f, "element ", i);
  });
  EXPECT_EQ(world.join(1), "");
  EXPECT_EQ(world.join(0), "");
}

TEST(ForkedChild, DoesNotSpeakForTheRank) {
  SKIP_WITHOUT_FORK();
  const auto errors = testing::run_shm_processes(2, [](Comm& comm) {
    gather(comm, 10, "before");
    if (comm.rank() == 1) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        comm.~Comm();  // as a data loader's worker does at its end
        ::_exit(0);
      }
      ::waitpid(pid, nullptr, 0);
    }
    gather(comm, 10, "after");
    comm.barrier("end");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// What the forked child of a rank gets from `use`, "" when nothing is thrown.
std::string error_in_child(const std::function<void()>& use) {
  testing::ForkedWorld child(1, [&](int, Bootstrap&) { use(); });
  return child.join(0);
}

TEST(ForkedChild, IsRefusedByTheCommunicatorOfItsParent) {
  SKIP_WITHOUT_FORK();
  const auto use = [](Comm& comm) {
    const auto kept = comm.allocate(4096, "kept");
    auto exchange = comm.exchange({kept->data(), comm.world_size() * 10, DType::kFloat32}, {}, "before the fork");
    exchange->wait();
    const std::vector<std::function<void()>> calls = {
        [&] { gather(comm, 10, "of the child"); },
        [&] { comm.barrier("of the child"); },
        [&] { comm.allocate(100, "of the child"); },
        [&] {
          comm.abort("by the child");
          comm.barrier("of the child");
        },
        [&] { exchange->release(); },
    };
    const size_t harmless = comm.world_size() == 1 ? calls.size() - 1 : calls.size();  // nothing is shared
    for (size_t i = 0; i < harmless; ++i) {
      const std::string error = error_in_child(calls[i]);
      for (const std::string& part :
           {std::string("is a fork of rank "), std::string("communicator"), std::to_string(::getpid())})
        testing::require(error.find(part) != std::string::npos, "call ", i, ": '", error, "' lacks '", part, "'");
    }
    testing::require(error_in_child([&] { kept->~Allocation(); }).empty(), "freeing failed");
    exchange->drain();
    const auto more = comm.allocate(100, "more");  // here ranks forget what their peers have freed
    const auto again = comm.exchange({kept->data(), comm.world_size() * 10, DType::kFloat32}, {}, "what the rank kept");
    again->wait();
    again->release();
    again->drain();
    gather(comm, 10, "after");
    comm.barrier("end");
  };
  for (const std::string& error : testing::run_shm_processes(2, use)) EXPECT_EQ(error, "");
  EXPECT_EQ(error_in_child([&] { use(*make_single_comm()); }), "");
}

TEST(ForkedChild, ProcessIdsOutliveTheirProcesses) {
  SKIP_WITHOUT_FORK();
  const ProcessId self = this_process();
  EXPECT_EQ(state_of(self), ProcessState::kRunning);
  EXPECT_EQ(state_of({self.pid, self.start_time + 1}), ProcessState::kDead) << "another process with the same pid";
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ::kill(child, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(state_of({child, 0}), ProcessState::kDead) << "a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(state_of({child, 0}), ProcessState::kDead);
}

std::set<std::string> names_in(const char* directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

int64_t memfd_mappings() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:zeroshard") != std::string::npos;
  return count;
}

TEST(Resources, NothingIsLeftBehind) {
  const auto files = names_in("/proc/self/fd"), shared = names_in("/dev/shm");
  const int64_t mappings = memfd_mappings();
  for (int round = 0; round < 3; ++round) {
    const auto errors = testing::run_shm_threads(3, [&](Comm& comm) {
      const auto kept = comm.allocate(1 << 16, "kept");
      for (int i = 0; i < 20; ++i) comm.allocate(1 << 16, "freed");
      comm.barrier("sweep");
      comm.barrier("swept by all");
      // 3 ranks x (control block, 3 staging rings, 3 x `kept`): the freed ones are gone everywhere.
      testing::require(memfd_mappings() - mappings <= 3 * 7, "mappings: ", memfd_mappings() - mappings);
      for (const std::string& name : names_in("/proc/self/fd")) {
        std::error_code ignored;
        const auto target = std::filesystem::read_symlink("/proc/self/fd/" + name, ignored).string();
        testing::require(target.find("memfd:zeroshard") == std::string::npos, "open descriptor: ", target);
      }
      testing::require(names_in("/dev/shm") == shared, "a file in /dev/shm");
      comm.barrier("looked");
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  EXPECT_EQ(names_in("/proc/self/fd"), files);
  EXPECT_EQ(memfd_mappings(), mappings);
}

}  // namespace
}  // namespace zeroshard
