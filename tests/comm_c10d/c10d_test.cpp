#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "comm_c10d/c10d_comm.h"
#include "comm_c10d/c10d_core.h"
#include "comm_c10d/divergence.h"
#include "comm_c10d/gloo_group.h"
#include "comm_c10d/make_comm.h"
#include "support/comm_conformance.h"
#include "support/comm_world.h"
#include "support/expect.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::Clock, testing::expect_contains, testing::seconds_since;

using Transport = CommOptions::Transport;
constexpr at::DeviceType kCpu = at::DeviceType::CPU;

CommOptions with(Transport transport) {
  CommOptions options;
  options.transport = transport;
  return options;
}

// A name for a FileStore, removed at the end.
class StoreFile {
 public:
  StoreFile() {
    char name[] = "/tmp/zeroshard-store-XXXXXX";
    ::close(::mkstemp(name));
    path_ = name;
  }
  ~StoreFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> run_gloo_threads(int world_size, const CommOptions& options,
                                          const std::function<void(Comm&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return testing::run_threads(world_size, [&](int rank) {
    const auto group = make_gloo_group(store, rank, world_size);
    const auto comm = make_comm(group, kCpu, options);
    body(*comm);
  });
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

void gather(Comm& comm, int64_t numel, std::string_view tag) {
  std::vector<float> full(static_cast<size_t>(numel * comm.world_size()), 1.0f);
  comm.all_gather({full.data(), numel * comm.world_size(), DType::kFloat32},
                  Span{full.data() + comm.rank() * numel, numel, DType::kFloat32}, tag)
      ->wait();
}

// fork() comes before threads: the tests that fork are the file's first. Each rank makes its group in its own process.
bool threads_compute_at_once(int count) {
  std::atomic<int> ready{0};
  std::atomic<bool> computed{true};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&] {
      for (++ready; ready < count;) std::this_thread::yield();
      try {
        at::init_num_threads();  // as the first operation of a thread does
      } catch (const std::exception&) {
        computed = false;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return computed;
}

TEST(C10dCore, ThreadsOfAForkedProcessFindAPool) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked process";
#endif
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      const C10dCore core(nullptr, kCpu, PeerWatch({{}}, 60'000), with(Transport::kProcessGroup));
      ::_exit(threads_compute_at_once(4) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "attempt " << attempt;
  }
  at::set_num_threads(threads);
}

struct Victim {
  std::vector<std::string> errors;
  double seconds = 0;
  pid_t pid = 0;
};

Victim strike(int signal, int first_rank = 0) {
  const StoreFile file;
  CommOptions options = with(Transport::kProcessGroup);
  options.stall_timeout_ms = 700;
  options.numbers.first = first_rank;
  testing::ForkedWorld world(3, [&](int rank, Bootstrap&) {
    const auto store = c10::make_intrusive<c10d::FileStore>(file.path(), 3);
    const auto group = make_gloo_group(store, rank, 3);
    const auto comm = make_comm(group, kCpu, options);
    testing::require(comm->transport() == "gloo", comm->transport());
    gather(*comm, 1000, "early");
    if (rank == 1) ::raise(signal);
    gather(*comm, 1000, "model.layers.3");
  });
  const auto start = Clock::now();
  Victim victim;
  victim.pid = world.pid(1);
  victim.errors = {world.join(0), "", world.join(2)};
  victim.seconds = seconds_since(start);
  return victim;
}

TEST(C10dProcesses, DeadPeerIsNamed) {
  const Victim victim = strike(SIGKILL);
  EXPECT_LT(victim.seconds, 6);
  // Of the survivors one may see the other give up first, and name it too.
  for (const size_t rank : {0u, 2u})
    expect_contains(victim.errors[rank],
                    {"rank 1 (pid " + std::to_string(victim.pid) + ") died", "#2 all_gather('model.layers.3'"});
}

TEST(C10dProcesses, DeadPeerOfAPartOfTheWorldHasItsNumberInTheWorld) {
  const Victim victim = strike(SIGKILL, /*first_rank=*/6);
  for (const size_t rank : {0u, 2u})
    expect_contains(victim.errors[rank],
                    {concat("rank ", 6 + rank, ": collective #2"), concat("rank 7 (pid ", victim.pid, ") died")});
}

TEST(C10dProcesses, StoppedPeerIsNamed) {
  const Victim victim = strike(SIGSTOP);
  EXPECT_GT(victim.seconds, 0.5);
  EXPECT_LT(victim.seconds, 6);
  std::string both = victim.errors[0] + victim.errors[2];
  expect_contains(both, {"rank 1 (pid " + std::to_string(victim.pid) + ") has been stopped", "'model.layers.3'"});
  EXPECT_NE(victim.errors[0], "");
  EXPECT_NE(victim.errors[2], "");
}

TEST(C10dProcesses, AutoTakesSharedMemoryOnOneHost) {
  const StoreFile file;
  testing::ForkedWorld world(2, [&](int rank, Bootstrap&) {
    const auto group = make_gloo_group(c10::make_intrusive<c10d::FileStore>(file.path(), 2), rank, 2);
    const auto comm = make_comm(group, kCpu);
    testing::require(comm->transport() == "shm", comm->transport());
    testing::check_conformance(*comm);
  });
  expect_no_errors(world.join_all());
}

// Addresses that this process listens on, from /proc/net/tcp{,6}: "0100007F:1F90" and so on.
std::vector<std::string> listening() {
  std::vector<std::string> sockets, addresses;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.rfind("socket:[", 0) == 0) sockets.push_back(target.substr(8, target.size() - 9));
  }
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string index, local, remote, state, queue, timer, retries, user, timeout, inode;
      fields >> index >> local >> remote >> state >> queue >> timer >> retries >> user >> timeout >> inode;
      if (state == "0A" && std::find(sockets.begin(), sockets.end(), inode) != sockets.end())
        addresses.push_back(local);
    }
  }
  return addresses;
}

TEST(C10dProcesses, StoreAndGlooListenOnLoopbackAlone) {
  const std::string port = std::to_string(20000 + ::getpid() % 20000);
  testing::ForkedWorld world(2, [&](int rank, Bootstrap&) {
    ::setenv("MASTER_PORT", port.c_str(), 1);
    ::unsetenv("MASTER_ADDR");
    const auto store = make_env_store(rank, 2, 20'000);
    const auto group = make_gloo_group(store, rank, 2);
    const auto comm = make_comm(group, kCpu, with(Transport::kProcessGroup));
    testing::check_many_in_flight(*comm, false, 3);
    const auto addresses = listening();
    testing::require(!addresses.empty(), "found no listening socket: the test looks in the wrong place");
    for (const std::string& address : addresses)
      testing::require(address.rfind("0100007F:", 0) == 0, "listens on ", address);
    comm->barrier("end");
  });
  expect_no_errors(world.join_all());
}

// A socket bound to a free port of 127.0.0.1, which does not listen yet.
struct FreePort {
  FreePort() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~FreePort() { ::close(fd); }
  int fd;
  uint16_t port = 0;
};

TEST(C10dEnvironment, ARankAwaitsTheListener) {
  const FreePort free;
  std::atomic<bool> listening{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is looked for meanwhile, in vain
    listening = true;
    ::listen(free.fd, 1);
  });
  await_listener_on_loopback(free.port, std::chrono::seconds(60));
  EXPECT_TRUE(listening);
  other.join();
}

TEST(C10dEnvironment, ARankDoesNotAwaitAListenerForEver) {
  const FreePort free;
  const auto start = Clock::now();
  await_listener_on_loopback(free.port, std::chrono::milliseconds(50));
  EXPECT_GE(seconds_since(start), 0.05);
  EXPECT_LT(seconds_since(start), 30);
}

TEST(C10dEnvironment, WrongPortIsAValueError) {
  ::setenv("MASTER_PORT", "70000", 1);
  EXPECT_THROW(make_env_store(0, 1, 1000), ValueError);
  ::unsetenv("MASTER_PORT");
}

class C10dConformance : public ::testing::TestWithParam<int> {};

TEST_P(C10dConformance, Gloo) {
  expect_no_errors(run_gloo_threads(GetParam(), with(Transport::kProcessGroup),
                                    [](Comm& comm) { testing::check_conformance(comm, {.rank_order = false}); }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, C10dConformance, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return "of" + std::to_string(info.param); });

TEST(C10dComm, ConformsWithoutAGroup) {
  C10dComm comm(nullptr, kCpu, PeerWatch({{}}, 1000));
  EXPECT_EQ(comm.transport(), "single");
  testing::check_conformance(comm);
}

TEST(C10dComm, SumsOfTheBackEndAreCloseAndOfAllDtypes) {
  expect_no_errors(run_gloo_threads(3, with(Transport::kProcessGroup), [](Comm& comm) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      std::vector<uint16_t> halves(2 * 12);  // room for fp32 as well
      std::vector<uint16_t> out(2 * 4);
      // 1.0 in each format
      for (int i = 0; i < 12; ++i) {
        if (dtype == DType::kFloat32) reinterpret_cast<float*>(halves.data())[i] = 1.0f;
        if (dtype == DType::kBFloat16) halves[static_cast<size_t>(i)] = 0x3f80;
        if (dtype == DType::kFloat16) halves[static_cast<size_t>(i)] = 0x3c00;
      }
      comm.reduce_scatter({out.data(), 4, dtype}, Span{halves.data(), 12, dtype}, "r")->wait();
      for (int i = 0; i < 4; ++i) {
        if (dtype == DType::kFloat32) testing::require(reinterpret_cast<float*>(out.data())[i] == 3.0f, "fp32");
        if (dtype == DType::kBFloat16) testing::require(out[static_cast<size_t>(i)] == 0x4040, "bf16");
        if (dtype == DType::kFloat16) testing::require(out[static_cast<size_t>(i)] == 0x4200, "fp16");
      }
    }
    // Beyond 64 KiB: Gloo's own sum and maximum, exact on small integers.
    std::vector<float> large(40'000, static_cast<float>(comm.rank() + 1));
    const Span span{large.data(), 40'000, DType::kFloat32};
    comm.all_reduce(span, ReduceOp::kSum, "large")->wait();
    for (const float value : large) testing::require(value == 6.0f, value);
    large.assign(large.size(), static_cast<float>(comm.rank()));
    comm.all_reduce(span, ReduceOp::kMax, "large")->wait();
    for (const float value : large) testing::require(value == 2.0f, value);
  }));
}

TEST(C10dComm, DivergenceIsNoticedAtTheNextAllReduce) {
  const auto errors = run_gloo_threads(3, with(Transport::kProcessGroup), [](Comm& comm) {
    gather(comm, 4, comm.rank() == 2 ? "model.layers.4" : "model.layers.3");
    int64_t word = 0;
    comm.all_reduce({&word, 1, DType::kOther8}, ReduceOp::kMax, "step end")->wait();
  });
  for (const std::string& error : errors)
    expect_contains(error, {"rank 2 has called other collectives than rank 0", "'step end'"});
}

TEST(C10dComm, MessagesNumberRanksOfAPartOfTheWorldFromItsFirst) {
  CommOptions options = with(Transport::kProcessGroup);
  options.numbers.first = 4;
  const auto run = [&](const std::function<void(Comm&)>& body) { return run_gloo_threads(2, options, body); };
  for (const std::string& error : run([](Comm& comm) {
         gather(comm, 4, comm.rank() == 1 ? "model.layers.4" : "model.layers.3");
         int64_t word = 0;
         comm.all_reduce({&word, 1, DType::kOther8}, ReduceOp::kMax, "step end")->wait();
       }))
    expect_contains(error, {"rank 5 has called other collectives than rank 4"});
  for (const std::string& error :
       run([](Comm& comm) { comm.rank() == 0 ? gather(comm, 4, "model.layers.3") : comm.barrier("the end"); }))
    expect_contains(error, {"ranks disagree: in collective #1 rank 4 called all_gather", "rank 5 called barrier"});
  const auto errors = run([](Comm& comm) {
    comm.abort("disk full");
    comm.barrier("after");
  });
  expect_contains(errors[1], {"disk full [reported by rank 5]"});
}

// A collective that ends in an error once another rank has left, which takes the store along.
class LastLookStore final : public c10d::HashStore {
 public:
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    c10d::HashStore::set(key, value);
    if (key.ends_with("/found/0")) gone = true;
  }
  bool check(const std::vector<std::string>& keys) override {
    if (gone && !keys.front().ends_with("/found/1")) throw std::runtime_error("the store is gone");
    return c10d::HashStore::check(keys);
  }
  std::atomic<bool> gone{false};
};

class WorkOfTheOther final : public c10d::Work {
 public:
  explicit WorkOfTheOther(const LastLookStore& store) : store_(store) {}
  bool isCompleted() override { return store_.gone; }
  bool wait(std::chrono::milliseconds) override { throw std::runtime_error("Connection closed by peer"); }

 private:
  const LastLookStore& store_;
};

TEST(C10dCore, ADifferenceFoundIsToldAlthoughTheOtherHasLeftMeanwhile) {
  const auto store = c10::make_intrusive<LastLookStore>();
  Divergence other(store, 1, 2);
  const size_t number = other.add_communicator();
  Op op(OpKind::kBarrier, 0, DType::kOther1, "other");
  op.seq = 1;
  other.note(number, op, 7);
  EXPECT_FALSE(other.look(number, &op));
  store->set("zeroshard/1/found/1", "");
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 2);
  C10dCore core(group, kCpu, PeerWatch({{}, {}}, 60'000), with(Transport::kProcessGroup));
  Op own(OpKind::kAllReduce, 1, DType::kFloat32, "own");
  const auto work = core.issue(own, [&] { return c10::make_intrusive<WorkOfTheOther>(*store); });
  try {
    core.complete_on_host(*work, own);
    FAIL() << "no error";
  } catch (const CommError& error) {
    expect_contains(error.what(),
                    {"ranks disagree: in collective #1 rank 0 called all_reduce", "rank 1 called barrier"});
    c10::raw::intrusive_ptr::decref(group.get());  // a core that failed keeps it, as Gloo's destructor needs
  }
}

TEST(C10dComm, TimeOutNamesOperationTagAndNumber) {
  CommOptions options = with(Transport::kProcessGroup);
  options.timeout_ms = 300;
  std::atomic<bool> over{false};
  const auto errors = run_gloo_threads(2, options, [&](Comm& comm) {
    gather(comm, 4, "both");
    if (comm.rank() == 1) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      gather(comm, 4, "alone");
    } catch (const CommError& first) {
      over = true;
      try {
        comm.barrier("later");
      } catch (const CommError& second) {
        testing::require(std::string(first.what()) == second.what(), "a later call throws another error");
        throw;
      }
    }
  });
  expect_contains(errors[0], {"#2 all_gather('alone', 16 bytes fp32)", "not done after"});
}

// A call that fails on rank 0, which frees its memory before rank 1 comes. Whether it has been written to then, and may
// be according to the communicator.
struct AfterFailure {
  bool is_written = false, still_writes = false;
};

AfterFailure after_failure(const std::function<void(Comm&, Span)>& call) {
  CommOptions options = with(Transport::kProcessGroup);
  options.timeout_ms = 300;
  std::atomic<bool> failed{false}, came{false};
  AfterFailure after;
  run_gloo_threads(2, options, [&](Comm& comm) {
    constexpr int64_t kBytes = 100'000;
    static std::deque<std::vector<unsigned char>> kept;  // collectives that have failed may use it until the end
    static std::mutex mutex;
    const auto keep = [&]() -> std::vector<unsigned char>& {
      const std::scoped_lock lock(mutex);
      return kept.emplace_back(kBytes, static_cast<unsigned char>(comm.rank()));
    };
    std::vector<unsigned char>& memory = keep();
    const Span span{memory.data(), kBytes, DType::kOther1};
    if (comm.rank() == 1) {
      while (!failed) std::this_thread::yield();
      EXPECT_FALSE(comm.still_writes());
      try {
        call(comm, span);  // which succeeds where nothing more is to come from rank 0
      } catch (const CommError&) {
      }
      came = true;
      return;
    }
    EXPECT_THROW(call(comm, span), CommError);
    after.still_writes = comm.still_writes();
    failed = true;
    while (!came) std::this_thread::yield();
    for (int i = 0; i < 50 && !after.is_written; ++i) {  // it may come a moment later
      after.is_written = std::count(memory.begin(), memory.end(), 1) > 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  return after;
}

TEST(C10dComm, AFailedCollectiveWritesOnlyWhereItSays) {
  const AfterFailure broadcast =
      after_failure([](Comm& comm, Span span) { comm.broadcast(span, /*root=*/1, "late")->wait(); });
  EXPECT_TRUE(broadcast.still_writes);
  EXPECT_FALSE(broadcast.is_written);
  const AfterFailure sum = after_failure([](Comm& comm, Span span) {
    comm.all_reduce({span.data, span.numel / 4, DType::kFloat32}, ReduceOp::kMax, "late")->wait();
  });
  EXPECT_TRUE(sum.still_writes);
  EXPECT_FALSE(sum.is_written);
  // The output of a gather is its caller's.
  const AfterFailure gather = after_failure([](Comm& comm, Span span) {
    const Span mine{static_cast<char*>(span.data) + comm.rank() * span.numel / 2, span.numel / 2, span.dtype};
    comm.all_gather(span, mine, "late")->wait();
  });
  EXPECT_TRUE(gather.still_writes);
  EXPECT_TRUE(gather.is_written);
}

TEST(C10dComm, ACollectiveThatNobodyWaitedForMayWrite) {
  std::atomic<bool> came{false};
  const auto errors = run_gloo_threads(2, with(Transport::kProcessGroup), [&](Comm& comm) {
    const auto memory = comm.allocate(32, "full"), shard = comm.allocate(16, "shard");
    const auto call = [&] {
      return comm.all_gather({memory->data(), 8, DType::kFloat32}, {shard->data(), 4, DType::kFloat32}, "left");
    };
    call()->wait();
    testing::require(!comm.still_writes(), "nothing is under way");
    if (comm.rank() == 0) {
      call();
      testing::require(comm.still_writes(), "rank 1 has not come");
      came = true;
      return;
    }
    while (!came) std::this_thread::yield();
    call()->wait();
    testing::require(!comm.still_writes(), "it was waited for");
  });
  expect_no_errors(errors);
}

TEST(C10dComm, CommunicatorsThatShareAFailureFailTogether) {
  std::atomic<bool> over{false};
  const auto first_store = c10::make_intrusive<c10d::HashStore>(),
             second_store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = testing::run_threads(2, [&](int rank) {
    CommOptions options = with(Transport::kProcessGroup);
    options.timeout_ms = 300;
    options.failure = std::make_shared<SharedFailure>();
    const auto first = make_comm(make_gloo_group(first_store, rank, 2), kCpu, options);
    const auto second = make_comm(make_gloo_group(second_store, rank, 2), kCpu, options);
    if (rank == 1) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    for (Comm* const comm : {first.get(), second.get()}) {
      try {
        gather(*comm, 4, comm == first.get() ? "alone" : "later");
      } catch (const CommError&) {
        if (comm == first.get()) continue;
        over = true;
        throw;
      }
    }
  });
  expect_contains(errors[0], {"all_gather('alone', 16 bytes fp32)"});
}

TEST(C10dComm, AbortFailsLaterCalls) {
  const auto errors = run_gloo_threads(2, with(Transport::kProcessGroup), [](Comm& comm) {
    comm.abort("disk full");
    comm.barrier("after");
  });
  for (const std::string& error : errors) expect_contains(error, {"disk full"});
}

TEST(MakeComm, RanksMustAgreeOnTheTransport) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = testing::run_threads(2, [&](int rank) {
    make_comm(make_gloo_group(store, rank, 2), kCpu, with(rank == 0 ? Transport::kAuto : Transport::kProcessGroup));
  });
  for (const std::string& error : errors) expect_contains(error, {"another transport"});
}

TEST(MakeComm, ResolvesGroupsByName) {
  const auto group = make_gloo_group(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  c10d::register_process_group("zeroshard test", group);
  EXPECT_EQ(make_comm(std::string("zeroshard test"), kCpu)->world_size(), 1);
  c10d::unregister_process_group("zeroshard test");
  EXPECT_EQ(make_comm(std::string(), kCpu)->transport(), "single");
}

}  // namespace
}  // namespace zeroshard
