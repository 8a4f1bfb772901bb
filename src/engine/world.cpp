#include "zeroshard/world.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/check.h"
#include "comm/wait_graph.h"
#include "comm_c10d/divergence.h"
#include "comm_c10d/gloo_group.h"
#include "comm_c10d/make_comm.h"
#include "device/cpu_allocator.h"
#include "device/dtype.h"
#include "launch/heartbeat.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard {
namespace {

constexpr int64_t kCheckpointTimeoutMs = 3'600'000;

// Tells `zeroshard run` where this rank waits.
class HeartbeatListener final : public WaitListener {
 public:
  void waiting(std::string_view where) noexcept override { heartbeat_.waiting(where); }
  void done_waiting() noexcept override { heartbeat_.done_waiting(); }

 private:
  Heartbeat heartbeat_ = Heartbeat::from_environment();
};

CommOptions comm_options(const Config& config) {
  using Transport = CommOptions::Transport;
  CommOptions options;
  options.transport = config.transport == Config::Transport::kShm            ? Transport::kShm
                      : config.transport == Config::Transport::kProcessGroup ? Transport::kProcessGroup
                                                                             : Transport::kAuto;
  options.timeout_ms = config.timeout_ms;
  options.stall_timeout_ms = config.stall_timeout_ms;
  options.wait_listener = std::make_shared<HeartbeatListener>();
  return options;
}

// torchrun keeps one store over restarts: the keys of an earlier attempt must not be found.
std::string attempt() {
  const char* const count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return concat("zeroshard/", count ? count : "0", "/");
}

}  // namespace

World::World(const Config& config) : device_(c10::kCPU) {
  const RankEnvironment env = rank_environment();
  ZS_CHECK(config.world_size == env.world_size, "the configuration was resolved for ", config.world_size,
           " rank(s), but ", env.source.empty() ? "without a launcher" : env.source + " says that", " there are ",
           env.world_size, ": set ConfigContext::world_size to rank_environment().world_size for load_config");
  Group gather, reduce, checkpoint;
  if (env.world_size > 1) {
    const auto store = make_env_store(env.rank, env.world_size, config.timeout_ms);
    const auto group = [&](const char* name) {
      const auto prefixed = c10::make_intrusive<c10d::PrefixStore>(attempt() + name, store);
      return make_gloo_group(prefixed, env.rank, env.world_size, config.timeout_ms);
    };
    gather = group("gather");
    reduce = group("reduce");
    checkpoint = group("checkpoint");
  }
  connect(config, gather, reduce, checkpoint);
}

World::World(const Config& config, c10::Device device, const Group& gather, const Group& reduce,
             const Group& checkpoint)
    : device_(device) {
  ZS_CHECK(bool(gather) == bool(reduce), "one of the two process groups is null");
  ZS_CHECK(gather.get() != reduce.get() || !gather, "gathers and reductions need a process group each");
  const int world_size = gather ? gather->getSize() : 1;
  ZS_CHECK(!gather || (reduce->getSize() == world_size && reduce->getRank() == gather->getRank()),
           "the two process groups have different ranks");
  ZS_CHECK(config.world_size == world_size, "the configuration was resolved for ", config.world_size,
           " rank(s), but the process groups have ", world_size);
  connect(config, gather, reduce, checkpoint);
}

World::~World() = default;

void World::connect(const Config& config, const Group& gather, const Group& reduce, const Group& checkpoint) {
  use_compact_cpu_allocator();
  CommOptions options = comm_options(config);
  // One thread calls all gathers and reductions; checkpoints are also written by one in the background.
  options.wait_graph = std::make_shared<WaitGraph>();
  std::shared_ptr<Divergence> divergence;
  if (gather) divergence = std::make_shared<Divergence>(gather->getStore(), gather->getRank(), gather->getSize());
  gather_ = make_comm(gather, device_, options, divergence);
  reduce_ = make_comm(reduce, device_, options, divergence);
  if (gather && !checkpoint) return;
  options.wait_graph.reset();
  // A rank waits here while another writes or reads its whole share.
  options.timeout_ms = std::max(options.timeout_ms, kCheckpointTimeoutMs);
  checkpoint_ = make_comm(checkpoint, c10::kCPU, options);
}

int World::rank() const {
  return reduce_->rank();
}
int World::world_size() const {
  return reduce_->world_size();
}
std::string_view World::transport() const {
  return gather_->transport();
}

std::vector<std::string> World::transports() const {
  std::vector<std::string> all;
  for (const auto* const comm : {&gather_, &reduce_, &checkpoint_})
    all.emplace_back(*comm ? (*comm)->transport() : std::string_view());
  return all;
}

double World::mean(double value) {
  const at::Tensor sum = at::full({1}, value, at::TensorOptions().dtype(at::kDouble).device(device_));
  reduce_->all_reduce({sum.data_ptr(), 1, to_dtype(at::kDouble)}, ReduceOp::kSum, "mean")->wait();
  return sum.item<double>() / world_size();
}

void World::barrier() {
  reduce_->barrier("World::barrier");
}

void World::abort(std::string_view reason) noexcept {
  gather_->abort(reason);
  reduce_->abort(reason);
  if (checkpoint_) checkpoint_->abort(reason);
}

}  // namespace zeroshard
