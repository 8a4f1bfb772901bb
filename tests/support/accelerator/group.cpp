#include "support/accelerator/group.h"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "support/accelerator/device.h"
#include "support/accelerator/fallback.h"
#include "support/accelerator/memory.h"

namespace zeroshard::accelerator {
namespace {

using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<at::Tensor>;

std::array<std::atomic<int>, kDevices>& aborts() {
  static std::array<std::atomic<int>, kDevices> counts{};
  return counts;
}

struct DeviceWork final : Work {
  explicit DeviceWork(Mark end) : end_(std::move(end)) {}
  bool isCompleted() override { return Streams::get().is_done(end_); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    Streams::get().wait_on_stream(current_stream(end_.stream.device), end_);
    return true;
  }
  void synchronize() override { wait(std::chrono::milliseconds(0)); }
  void abort() override {}

 private:
  Mark end_;
};

class DeviceBackend final : public c10d::Backend {
 public:
  DeviceBackend(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, int rank, int world_size, int device)
      : Backend(rank, world_size),
        gloo_(std::move(gloo)),
        stream_(Streams::get().make_stream(device, /*eager=*/true)) {}

  const std::string getBackendName() const override { return "simulated"; }
  // What is under way ends, whoever is missing. As NCCL's, it returns when the device is idle: when other groups of the
  // device have ended, too.
  void abort() override {
    ++aborts()[size_t(stream_.device)];
    *is_aborted_ = true;
    Streams::get().wait_for_device(stream_.device);
  }

  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options) override {
    return run("all_gather", {in}, {out}, [options](c10d::Backend& gloo, Tensors ins, Tensors outs) {
      return gloo._allgather_base(outs[0], ins[0], options);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override {
    return run("reduce_scatter", {in}, {out}, [options](c10d::Backend& gloo, Tensors ins, Tensors outs) {
      return gloo._reduce_scatter_base(outs[0], ins[0], options);
    });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                        std::vector<int64_t>& in_splits, const c10d::AllToAllOptions& options) override {
    return run("all_to_all", {in}, {out},
               [out_splits, in_splits, options](c10d::Backend& gloo, Tensors ins, Tensors outs) mutable {
                 return gloo.alltoall_base(outs[0], ins[0], out_splits, in_splits, options);
               });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return run("all_reduce", {}, tensors,
               [options](c10d::Backend& gloo, Tensors, Tensors outs) { return gloo.allreduce(outs, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool sends = options.rootRank == getRank();
    return run("broadcast", sends ? tensors : Tensors{}, sends ? Tensors{} : tensors,
               [options](c10d::Backend& gloo, Tensors ins, Tensors outs) {
                 Tensors& all = ins.empty() ? outs : ins;
                 return gloo.broadcast(all, options);
               });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return run("barrier", {}, {}, [](c10d::Backend& gloo, Tensors, Tensors) { return gloo.barrier({}); });
  }

 private:
  using Collective = std::function<WorkPtr(c10d::Backend&, Tensors ins, Tensors outs)>;

  WorkPtr run(const std::string& name, const Tensors& ins, const Tensors& outs, Collective collective) {
    for (const Tensors& tensors : {ins, outs})
      for (const at::Tensor& tensor : tensors)
        TORCH_CHECK(tensor.device().index() == stream_.device, "the group is of device ", stream_.device,
                    ", the tensor of ", tensor.device());
    Streams& streams = Streams::get();
    streams.wait_on_stream(stream_, streams.record(current_stream(stream_.device)));
    std::vector<Access> accesses;
    Tensors real_ins, real_outs;
    for (const at::Tensor& tensor : ins) {
      accesses.push_back(access_of(tensor, /*writes=*/false));
      real_ins.push_back(real_tensor(tensor));
    }
    for (const at::Tensor& tensor : outs) {
      accesses.push_back(access_of(tensor, /*writes=*/true));
      real_outs.push_back(real_tensor(tensor));
    }
    streams.enqueue(stream_, WorkKind::kOther, name, accesses,
                    [gloo = gloo_, is_aborted = is_aborted_, collective = std::move(collective), real_ins, real_outs] {
                      if (*is_aborted) return;
                      try {
                        const WorkPtr work = collective(*gloo, real_ins, real_outs);
                        wait_unless([&] { return work->isCompleted(); }, *is_aborted);
                        if (!*is_aborted) work->wait();
                      } catch (const std::exception&) {
                        wait_unless([] { return false; }, *is_aborted);  // NCCL would not notice that a peer is gone
                      }
                    });
    return c10::make_intrusive<DeviceWork>(streams.record(stream_));
  }

  static void wait_unless(const std::function<bool()>& is_over, const std::atomic<bool>& is_aborted) {
    while (!is_over() && !is_aborted) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  StreamKey stream_;
  std::shared_ptr<std::atomic<bool>> is_aborted_ = std::make_shared<std::atomic<bool>>(false);
};

c10::intrusive_ptr<c10d::ProcessGroupGloo> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                     int world_size) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank,
                                                     world_size, options);
}

}  // namespace

int aborted_groups(int device) {
  return aborts()[size_t(device)];
}

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               int device) {
  return c10::make_intrusive<DeviceBackend>(make_gloo(store, rank, world_size), rank, world_size, device);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, int device) {
  using Type = c10d::ProcessGroup::BackendType;
  const auto gloo = make_gloo(store, rank, world_size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
  group->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
  group->setBackend(c10::DeviceType::PrivateUse1, Type::CUSTOM,
                    c10::make_intrusive<DeviceBackend>(gloo, rank, world_size, device));
  group->setDefaultBackend(Type::CUSTOM);
  return group;
}

}  // namespace zeroshard::accelerator
