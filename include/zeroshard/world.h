#pragma once
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/config.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/replica_comms.h"

namespace c10d {
class ProcessGroup;
}

namespace zeroshard {

class Comm;
struct CommOptions;
class Meeting;
class RankObserver;

// Returns the device of this rank. `name` is "cpu", a kind of device, a single device or "auto". A kind, such as
// "cuda", means the device whose index is the rank's number on its host. A single device, such as "cuda:1", is for a
// rank that is alone on its host. "auto" means the kind of accelerator that this LibTorch supports if the host has one,
// else the CPU. Throws ConfigError for another name, for a device that this build or this host does not have, for a
// single device if the host has several ranks, and if the host has fewer devices than ranks. All ranks of the host
// throw the error about too few devices if RankEnvironment::local_world_size is known. Otherwise only the ranks without
// a device throw it. `place` names the option or configuration key that has the device's name, for error messages.
c10::Device choose_device(const std::string& name, const std::string& place,
                          const RankEnvironment& ranks = rank_environment());

// Connects the ranks of a run, and has the communicators that an Engine needs. By default, CPU ranks of one host
// exchange tensors through shared memory if they can share memory and if all hosts have equally many ranks. All other
// exchanges go through process groups. Config::transport can change that for CPU ranks. The constructors are
// collective. Every rank must call mean() and barrier() in the same order. A World must outlive the engines that use
// it.
class World {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // Connects CPU ranks, as the launcher's variables describe them (see rank_environment.h). The ranks meet at
  // MASTER_ADDR:MASTER_PORT and connect over Gloo. If MASTER_ADDR is a loopback address or unset, they listen only on
  // the loopback interface, unless GLOO_SOCKET_IFNAME names another one. Throws ValueError if the variables are wrong
  // or `config` was resolved for another number of ranks. Throws CommError if a rank is missing, has died or could not
  // create its world. After a CommError, every rank may try again. `observer` gets reports about waits, and about the
  // steps of engines that get the same observer. `observer` may be null.
  explicit World(const Config& config, const RankEnvironment& ranks = rank_environment(),
                 std::shared_ptr<RankObserver> observer = launcher_observer());
  // Connects ranks on `device`, which choose_device() returns. If `device` is not the CPU, it becomes the current
  // device. GPU ranks exchange tensors over NCCL. Throws the same errors as the constructor above, and ConfigError if
  // this build has no collectives for such devices.
  World(const Config& config, c10::Device device, const RankEnvironment& ranks = rank_environment(),
        std::shared_ptr<RankObserver> observer = launcher_observer());
  // Uses the caller's process groups, such as NCCL's. `gather` and `reduce` must be two groups, because each rank can
  // interleave gathers with reductions in an order of its own. If both groups are null, the world has one rank.
  // `checkpoint` is a group for host memory (Gloo), over which the ranks save and load. Without `checkpoint`, several
  // ranks cannot save or load. If the caller passes the `meeting` at which the ranks arrived, errors name a rank that
  // dies while the ranks connect, and the constructor ends the meeting when all ranks are connected.
  World(const Config& config, c10::Device device, const Group& gather, const Group& reduce,
        const Group& checkpoint = nullptr, Meeting* meeting = nullptr,
        std::shared_ptr<RankObserver> observer = launcher_observer());
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int world_size() const;
  c10::Device device() const { return device_; }
  const std::shared_ptr<RankObserver>& observer() const { return observer_; }
  std::string_view transport() const;  // "shm", "gloo", "nccl", ...
  // Returns the transports of gathers, of reductions and of checkpoints ("": no checkpoints). If there are several
  // replicas, the first two are both the transport between all ranks. Collectives whose transport is "shm" no longer
  // need the caller's process group.
  std::vector<std::string> transports() const;

  // Returns the communicator of the Config::shard_ranks() ranks that shard one copy of the parameters among themselves.
  Comm& gather() { return *gather_; }
  // Like gather(), but for reductions. Returns the same communicator as gather() if all streams of the device share one
  // queue (CUDA_DEVICE_MAX_CONNECTIONS=1).
  Comm& reduce() { return reduce_ ? *reduce_ : *gather_; }
  Comm* checkpoint() { return checkpoint_.get(); }
  // Returns the communicator of all ranks.
  Comm& all() { return all_ ? *all_ : reduce(); }
  ReplicaComms replication() { return {all_.get(), replicas_.get()}; }
  // Returns the communicator of the ranks that train on the same rows as this rank. These are sequence_parallel_size
  // consecutive ranks. Returns null if that size is 1, and in a world over the caller's process groups.
  const std::shared_ptr<Comm>& sequence() { return sequence_; }

  // Returns the mean of `value` over all ranks, for losses and metrics. The result has the same bits on every rank.
  double mean(double value);
  void barrier();
  // Makes other ranks fail with `reason` if they wait for this rank. They fail now, and not only when this process
  // ends.
  void abort(std::string_view reason) noexcept;

 private:
  struct Groups {
    Group gather, reduce, checkpoint, sequence;
  };
  void connect(const Config& config, const Groups& groups, Meeting* meeting);
  void connect_replicas(const Config& config, const Groups& groups, Meeting* meeting, const CommOptions& options);

  c10::Device device_;
  std::shared_ptr<RankObserver> observer_;
  std::unique_ptr<Comm> gather_, reduce_, checkpoint_;
  std::unique_ptr<Comm> all_, replicas_;  // null: there is one replica
  std::shared_ptr<Comm> sequence_;
};

}  // namespace zeroshard
