#pragma once
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/config.h"
#include "zeroshard/rank_environment.h"

namespace c10d {
class ProcessGroup;
}

namespace zeroshard {

class Comm;
class Meeting;
class RankObserver;

// The device of a rank, by its name: "cpu"; a kind of device, such as "cuda": the one with the rank's number on its
// host; a single one, "cuda:1", for a rank that is alone on its host; or "auto": this LibTorch's kind of accelerator if
// one is there, else the CPU. Throws ConfigError, on all ranks of a host alike, if there is none, or there are fewer
// than ranks; `place` is where the name was given.
c10::Device choose_device(const std::string& name, const std::string& place,
                          const RankEnvironment& ranks = rank_environment());

// The connected ranks of a run, with the communicators that an Engine needs. CPU ranks of one host exchange tensors
// through shared memory, others through their process groups (see Config::transport). The constructors are collective.
// Every rank calls every member that communicates, in the same order. Must outlive the engines that use it.
class World {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // CPU ranks, from the launcher's variables (see rank_environment.h). They meet at MASTER_ADDR:MASTER_PORT, over Gloo.
  // If that is a loopback address, or unset, they listen only there. Throws ValueError when the variables are wrong or
  // `config` was resolved for another number of ranks, CommError when a rank is missing, has died or could not make its
  // world; every rank may then try again. `observer`, which may be null, hears of waits, and of the steps of engines
  // that are given it.
  explicit World(const Config& config, const RankEnvironment& ranks = rank_environment(),
                 std::shared_ptr<RankObserver> observer = launcher_observer());
  // The same on `device`, which choose_device() gives: it becomes the current one, and ranks of GPUs exchange tensors
  // over NCCL. Throws ConfigError if this build has no such collectives.
  World(const Config& config, c10::Device device, const RankEnvironment& ranks = rank_environment(),
        std::shared_ptr<RankObserver> observer = launcher_observer());
  // Over the caller's process groups, such as NCCL's. Two, so that ranks may interleave gathers and reductions
  // differently. Null: a world of one. `checkpoint`, for saving and loading, moves host memory (Gloo); null with
  // several ranks: no checkpoints. `meeting`, of the same ranks: names a rank that dies while they are connected, and
  // ends afterwards.
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
  // The transports of gathers, of reductions and of checkpoints ("": there are none). With "shm" its process group is
  // no longer needed.
  std::vector<std::string> transports() const;

  Comm& gather() { return *gather_; }
  // The same as gather() where all streams of the device share one queue (CUDA_DEVICE_MAX_CONNECTIONS=1).
  Comm& reduce() { return reduce_ ? *reduce_ : *gather_; }
  Comm* checkpoint() { return checkpoint_.get(); }
  // Connects the ranks that share rows with this rank: sequence_parallel_size neighbours. Null where the size is 1, and
  // in a world over the caller's process groups.
  const std::shared_ptr<Comm>& sequence() { return sequence_; }

  // The mean over ranks, for losses and metrics: the same bits on every rank.
  double mean(double value);
  void barrier();
  // Makes peers that wait for this rank fail with `reason` now, instead of when this process ends.
  void abort(std::string_view reason) noexcept;

 private:
  struct Groups {
    Group gather, reduce, checkpoint, sequence;
  };
  void connect(const Config& config, const Groups& groups, Meeting* meeting);

  c10::Device device_;
  std::shared_ptr<RankObserver> observer_;
  std::unique_ptr<Comm> gather_, reduce_, checkpoint_;
  std::shared_ptr<Comm> sequence_;
};

}  // namespace zeroshard
