#include "zeroshard/world.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "comm/wait_graph.h"
#include "comm_c10d/device_group.h"
#include "comm_c10d/device_watch.h"
#include "comm_c10d/divergence.h"
#include "comm_c10d/gloo_group.h"
#include "comm_c10d/make_comm.h"
#include "device/cpu_allocator.h"
#include "device/current_device.h"
#include "device/dtype.h"
#include "world/meeting_state.h"
#include "zeroshard/rank_observer.h"

namespace zeroshard {
namespace {

constexpr int64_t kCheckpointTimeoutMs = 3'600'000;

// Tells the observer about this rank's waits, and learns from it how the job has failed on another host.
class ObservedWaits final : public WaitListener {
 public:
  explicit ObservedWaits(std::shared_ptr<RankObserver> observer) : observer_(std::move(observer)) {}
  void waiting(std::string_view where) noexcept override { observer_->waiting(where); }
  void done_waiting() noexcept override { observer_->done_waiting(); }
  std::string failure_elsewhere() override { return observer_->failure_elsewhere(); }

 private:
  std::shared_ptr<RankObserver> observer_;
};

CommOptions comm_options(const Config& config, const std::shared_ptr<RankObserver>& observer) {
  using Transport = CommOptions::Transport;
  CommOptions options;
  options.transport = config.transport == Config::Transport::kShm            ? Transport::kShm
                      : config.transport == Config::Transport::kProcessGroup ? Transport::kProcessGroup
                                                                             : Transport::kAuto;
  options.timeout_ms = config.timeout_ms;
  options.stall_timeout_ms = config.stall_timeout_ms;
  if (observer) options.wait_listener = std::make_shared<ObservedWaits>(observer);
  return options;
}

// Makes a note board that keeps its notes in a store.
NoteBoard note_board(const c10::intrusive_ptr<c10d::Store>& store) {
  return {.write = [store](const std::string& key, const std::string& note) { store->set(key, note); },
          .count = [store](const std::string& key) { return store->add(key, 1); },
          .has = [store](const std::string& key) { return store->check({key}); },
          .read = [store](const std::string& key) { return store->get_to_str(key); }};
}

// Returns the result of `connect`. Runs `connect` on a thread of its own, because c10d cannot be interrupted while it
// connects ranks. Throws CommError and abandons the thread if a rank dies or leaves the meeting, or if the time-out is
// over. If `connect` throws an error of zeroshard, that error passes through. An error of another library becomes a
// CommError that also names a rank that died or left, if there is one.
template <typename Connect>
auto while_all_live(Meeting& meeting, std::string_view what, Connect connect) {
  std::packaged_task<decltype(connect())()> task(std::move(connect));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  while (result.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    try {
      meeting.check(what);
    } catch (const c10::Error&) {  // the store does not answer, so `connect` will fail or time out
    }
  }
  try {
    return result.get();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    meeting.explain(error.what_without_backtrace());
  } catch (const std::exception& error) {
    meeting.explain(error.what());
  }
}

// Waits until all ranks have arrived, and returns the meeting. The meeting gets its own connection to the store,
// because a call that waits would block other calls on the same connection.
std::unique_ptr<Meeting> meet(const c10::intrusive_ptr<c10d::Store>& store, const RankEnvironment& env,
                              int64_t timeout_ms, const std::string& purpose,
                              const std::shared_ptr<RankObserver>& observer) {
  std::unique_ptr<Meeting> meeting;
  try {
    meeting =
        std::make_unique<Meeting>(note_board(store->clone()), env.rank, env.world_size, timeout_ms, purpose, observer);
    for (int64_t nap_ms = 1; !meeting->all_here(); nap_ms = std::min<int64_t>(nap_ms * 2, 20))
      std::this_thread::sleep_for(std::chrono::milliseconds(nap_ms));
  } catch (const c10::Error& error) {
    const std::string text = concat("the store that rank 0 serves does not answer: ", error.what_without_backtrace());
    if (meeting) meeting->explain(text);
    throw CommError(concat("rank ", env.rank, ": ", text));
  } catch (const std::exception& error) {
    if (meeting) meeting->leave(error.what());
    throw;
  }
  return meeting;
}

struct KeptStore {
  std::string address;
  c10::intrusive_ptr<c10d::Store> store;
};

// Returns the store that rank 0 has kept because a World could not be made; null if there is none. Rank 0 usually
// serves this store. When all ranks try again, they look for a store at the same address, so rank 0 uses this store
// again. The object is never destroyed, because in a forked child the store's destructor would wait for threads of the
// parent.
KeptStore& kept_store() {
  static auto& kept = *new KeptStore();
  return kept;
}

std::string store_address() {
  std::string text;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    const char* const value = std::getenv(name);
    text += concat(value != nullptr ? value : "", ":");
  }
  return text;
}

// Returns the prefix of the keys that this process uses in the store. The prefix has the number of restarts by
// torchrun. torchrun keeps the store when it restarts the ranks, and keys of an earlier attempt must not be found
// again.
std::string attempt_prefix() {
  const char* const count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return concat("zeroshard/", count ? count : "0", "/");
}

// Note [One queue for all streams of a device]
// With CUDA_DEVICE_MAX_CONNECTIONS=1 the device does all work in the order in which the host queued it. If ranks queued
// gathers and reductions in different orders, devices would wait for each other in different communicators, forever. So
// gathers and reductions use one communicator, which detects and reports a difference in their order. The variable is
// read when the world is made. If one rank sets it, it counts for all ranks. A world with several replicas refuses it.
bool has_one_queue(Comm& gather, c10::Device device) {
  if (device.is_cpu() || gather.world_size() == 1) return false;
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int64_t is_one = connections != nullptr && std::string_view(connections) == "1" ? 1 : 0;
  gather.host().all_reduce({&is_one, 1, DType::kOther8}, ReduceOp::kMax, "queues of the device")->wait();
  return is_one != 0;
}

}  // namespace

World::World(const Config& config, const RankEnvironment& env, std::shared_ptr<RankObserver> observer)
    : World(config, c10::kCPU, env, std::move(observer)) {}

World::World(const Config& config, c10::Device device, const RankEnvironment& env,
             std::shared_ptr<RankObserver> observer)
    : device_(device), observer_(std::move(observer)) {
  open_standard_streams();
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  ZS_CHECK(config.world_size == env.world_size, "the configuration was resolved for ", config.world_size,
           " rank(s), but ", env.source.empty() ? "without a launcher" : env.source + " says that", " there are ",
           env.world_size, ": set ConfigContext::world_size to rank_environment().world_size for load_config");
  if (env.world_size == 1) {
    connect(config, {}, nullptr);
    return;
  }
  const std::string address = store_address();
  KeptStore kept = std::exchange(kept_store(), {});
  auto store = kept.address == address ? std::move(kept.store) : nullptr;
  if (!store) store = make_env_store(env.rank, env.world_size, config.timeout_ms);
  std::unique_ptr<Meeting> meeting;
  try {
    const std::string purpose = concat("process groups with sequence_parallel_size ", config.sequence_parallel_size,
                                       " and ", config.shard_ranks(), " rank(s) for each replica of the ",
                                       config.shares_states() ? "parameters" : "states");
    meeting = meet(store, env, config.timeout_ms, purpose, observer_);
    const std::string prefix = concat(attempt_prefix(), meeting->number(), "/");
    struct Ranks {
      int rank, size;
    };
    const auto group = [store, prefix](const std::string& name, Ranks ranks, c10::Device where, int64_t timeout_ms) {
      const auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix + name, store);
      return where.is_cpu() ? make_gloo_group(prefixed, ranks.rank, ranks.size, timeout_ms)
                            : make_device_group(prefixed, ranks.rank, ranks.size, where, timeout_ms);
    };
    const auto make_groups = [group, device, all = Ranks{env.rank, env.world_size}, timeout_ms = config.timeout_ms,
                              size = config.sequence_parallel_size] {
      Groups groups{group("gather", all, device, timeout_ms), group("reduce", all, device, timeout_ms),
                    group("checkpoint", all, c10::kCPU, std::max(timeout_ms, kCheckpointTimeoutMs)), nullptr};
      if (size > 1)
        groups.sequence = group(concat("sequence", all.rank / size, "/"), {all.rank % size, size}, device, timeout_ms);
      return groups;
    };
    const Groups groups = while_all_live(*meeting, "process groups", make_groups);
    connect(config, groups, meeting.get());
  } catch (const std::exception& error) {
    if (meeting) meeting->leave(error.what());
    if (env.rank == 0) kept_store() = {address, store};
    throw;
  }
}

World::World(const Config& config, c10::Device device, const Group& gather, const Group& reduce,
             const Group& checkpoint, Meeting* meeting, std::shared_ptr<RankObserver> observer)
    : device_(with_index(device)), observer_(std::move(observer)) {
  open_standard_streams();
  ZS_CHECK(bool(gather) == bool(reduce), "one of the two process groups is null");
  ZS_CHECK(gather.get() != reduce.get() || !gather, "gathers and reductions need a process group each");
  const int world_size = gather ? gather->getSize() : 1;
  ZS_CHECK(!gather || (reduce->getSize() == world_size && reduce->getRank() == gather->getRank()),
           "the two process groups have different ranks");
  ZS_CHECK(config.world_size == world_size, "the configuration was resolved for ", config.world_size,
           " rank(s), but the process groups have ", world_size);
  connect(config, {gather, reduce, checkpoint, nullptr}, meeting);
}

World::~World() = default;

void World::connect(const Config& config, const Groups& groups, Meeting* meeting) {
  const auto& [gather, reduce, checkpoint, sequence] = groups;
  use_compact_cpu_allocator();
  CommOptions options = comm_options(config, observer_);
  if (meeting != nullptr) options.processes = meeting->state().processes;
  // The following objects are shared by communicators whose collectives the same thread calls. The communicator of
  // checkpoints does not get these objects, because a background thread uses it, too.
  options.wait_graph = std::make_shared<WaitGraph>();
  options.failure = std::make_shared<SharedFailure>();
  if (!device_.is_cpu()) options.device_watch = std::make_shared<DeviceWatch>();
  std::shared_ptr<Divergence> divergence;
  if (gather) divergence = std::make_shared<Divergence>(gather->getStore(), gather->getRank(), gather->getSize());
  if (gather && config.shard_ranks() < gather->getSize()) {
    connect_replicas(config, groups, meeting, options);
  } else {
    gather_ = make_comm(gather, device_, options, divergence);
    if (!has_one_queue(*gather_, device_)) reduce_ = make_comm(reduce, device_, options, divergence);
  }
  if (sequence) {
    // The sequence communicator fails together with the others, because they share SharedFailure. It has no part in
    // their wait graph, because it numbers the ranks of its own group from 0.
    CommOptions own = options;
    own.wait_graph.reset();
    own.numbers.first = rank() - sequence->getRank();
    const auto first = options.processes.begin() + own.numbers.first;
    if (!options.processes.empty()) own.processes.assign(first, first + sequence->getSize());
    sequence_ = make_comm(sequence, device_, own);
  }
  if (!gather || checkpoint) {
    options.wait_graph.reset();
    options.failure.reset();
    options.device_watch.reset();
    // The time-out is longer here, because a rank waits while another rank writes or reads its whole share.
    options.timeout_ms = std::max(options.timeout_ms, kCheckpointTimeoutMs);
    checkpoint_ = make_comm(checkpoint, c10::kCPU, options);
  }
  if (meeting != nullptr) meeting->end();
}

namespace {

// Returns a text for the log that says what each replica holds, and how exact the numbers are that replicas send each
// other. The text also tells if gradients are not summed as in one replica.
std::string describe_replicas(const Config& config) {
  const int size = config.shard_ranks();
  std::string text =
      concat(config.world_size / size, " replicas of ", config.shares_states() ? "the parameters" : "all states",
             ", each sharded over ", size, " rank(s)");
  if (config.shares_states())
    text += concat("; all ", config.world_size, " ranks share one copy of reduced gradients and optimizer states");
  const auto add_bound = [&](const char* what, const char* most) {
    text += concat("; ", what, " travel between them in 8 bits, and each rounding is off by at most ", most,
                   " % of the largest of 256 neighbours");
  };
  if (config.quantized_gradients) add_bound("sums of gradients", "0.7");
  if (config.quantized_weights && config.shares_states() && size > 1 && config.compute_dtype != DType::kFloat32)
    add_bound("updated parameters", "0.4");
  if (!std::has_single_bit(unsigned(size)))
    text +=
        ". Gradients are summed within these first, so the bits are not those of one replica: groups of 2, 4, 8, ... "
        "ranks would have those";
  return text;
}

}  // namespace

// Connects all ranks (all_), the ranks of this replica (gather_ and reduce_), and the ranks that hold the same shard in
// all replicas (replicas_).
void World::connect_replicas(const Config& config, const Groups& groups, Meeting* meeting, const CommOptions& options) {
  const Group& whole = groups.reduce;
  const int rank = whole->getRank(), size = config.shard_ranks(), replicas = whole->getSize() / size;
  all_ = make_comm(whole, device_, options);
  if (has_one_queue(*all_, device_))
    throw ConfigError(
        "groups that shard among themselves (zeroshard.mesh.shard) need several queues of the device: "
        "unset CUDA_DEVICE_MAX_CONNECTIONS");
  const auto store = whole->getStore();
  if (!store)
    throw ConfigError(
        "groups that shard among themselves (zeroshard.mesh.shard) need process groups that have a "
        "store, such as those of Gloo or NCCL");
  // The two communicators within a replica share a wait graph and a Divergence, by which ranks notice that they have
  // called different collectives.
  const auto graph = std::make_shared<WaitGraph>(RankNumbers{rank / size * size, 1});
  std::shared_ptr<Divergence> divergence;
  const auto connected = [&](const std::string& name, int first, int stride, int count) {
    if (count == 1) return make_comm(Group(), device_, options);
    const auto connect = [prefixed = c10::make_intrusive<c10d::PrefixStore>(concat("mesh/", name, "/", first), store),
                          rank = (rank - first) / stride, count, device = device_, timeout = config.timeout_ms] {
      // At the time-out, the caller of a collective reports that collective by name. The group waits a little longer,
      // so that its own error does not come first.
      return device.is_cpu() ? make_gloo_group(prefixed, rank, count, timeout + 2000)
                             : make_device_group(prefixed, rank, count, device, timeout + 2000);
    };
    const Group group =
        meeting != nullptr ? while_all_live(*meeting, "process groups of replicas", connect) : connect();
    // The communicator fails together with all others, because they share SharedFailure. It cannot use the wait graph
    // of all ranks, because it numbers its ranks from 0. The two communicators within a replica (stride 1) use `graph`
    // instead, and the one across replicas uses none.
    CommOptions own = options;
    own.wait_graph = stride == 1 ? graph : nullptr;
    own.processes.clear();
    for (int i = 0; i < count && !options.processes.empty(); ++i)
      own.processes.push_back(options.processes.at(size_t(first + i * stride)));
    own.numbers = {first, stride};
    if (stride > 1) return make_comm(group, device_, own);
    if (!divergence) divergence = std::make_shared<Divergence>(group->getStore(), group->getRank(), count, own.numbers);
    return make_comm(group, device_, own, divergence);
  };
  const int first = rank / size * size;
  gather_ = connected("gather", first, 1, size);
  reduce_ = connected("reduce", first, 1, size);
  replicas_ = connected("replicas", rank % size, size, replicas);
  if (rank == 0) log(LogLevel::kInfo, describe_replicas(config));
}

int World::rank() const {
  return all_ ? all_->rank() : gather_->rank();
}
int World::world_size() const {
  return all_ ? all_->world_size() : gather_->world_size();
}
std::string_view World::transport() const {
  return all_ ? all_->transport() : gather_->transport();
}

std::vector<std::string> World::transports() const {
  std::vector<std::string> all;
  const Comm* const first = all_ ? all_.get() : gather_.get();
  const Comm* const second = all_ || !reduce_ ? first : reduce_.get();
  for (const Comm* const comm : std::initializer_list<const Comm*>{first, second, checkpoint_.get()})
    all.emplace_back(comm != nullptr ? comm->transport() : std::string_view());
  return all;
}

double World::mean(double value) {
  all().host().all_reduce({&value, 1, DType::kFloat64}, ReduceOp::kSum, "mean")->wait();
  return value / world_size();
}

void World::barrier() {
  all().barrier("World::barrier");
}

void World::abort(std::string_view reason) noexcept {
  gather_->abort(reason);
  reduce().abort(reason);
  if (all_) all_->abort(reason);
  if (replicas_) replicas_->abort(reason);
  if (checkpoint_) checkpoint_->abort(reason);
  if (sequence_) sequence_->abort(reason);
}

}  // namespace zeroshard
