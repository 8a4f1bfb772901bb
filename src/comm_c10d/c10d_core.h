#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/process_mark.h"
#include "comm/comm_options.h"
#include "comm/op.h"
#include "comm/peer_watch.h"
#include "comm_c10d/device_watch.h"
#include "comm_c10d/divergence.h"

namespace zeroshard {

// Sequence, errors and waiting of a C10dComm. Shared with its Works and allocations, which may be destroyed later.
class C10dCore {
 public:
  // An operation under way whose input may be in use.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait_pending() = 0;
  };

  // `divergence`: shared by all communicators that one thread uses; null: only for this one.
  C10dCore(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device, PeerWatch watch, const CommOptions& options,
           std::shared_ptr<Divergence> divergence = nullptr);
  ~C10dCore();
  C10dCore(const C10dCore&) = delete;
  C10dCore& operator=(const C10dCore&) = delete;

  c10d::ProcessGroup& group() { return *group_; }
  at::Device device() const { return device_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // In a forked child of the rank: destroying objects would end its parent's connections and join threads it lacks.
  bool is_forked() const { return !process_.is_own(); }
  // Or another communicator of CommOptions::failure has failed.
  bool failed() const { return failure_->happened(); }
  SharedFailure& failure() { return *failure_; }
  // A thread looks after what the device is given, from now on until unwatch(). `why_host`: see WatchedComm.
  void watch(std::function<std::string()> why_host);
  void unwatch() { watching_.reset(); }
  // In a forked child nothing may end.
  void abandon_watch() { static_cast<void>(watching_.release()); }

  // See Comm::still_writes.
  bool still_writes() const { return failed() || was_left_; }
  // `work` will not be waited for any more.
  void leave(c10d::Work& work) noexcept;

  // Gives `op` its number and calls `start`, which begins it.
  c10::intrusive_ptr<c10d::Work> issue(Op& op, const std::function<c10::intrusive_ptr<c10d::Work>()>& start);
  // `work` must report correctly whether it is complete; not every wrapper of a backend does.
  // On the host: returns when `work` is done. On a device: makes the current stream wait for it.
  void complete(c10d::Work& work, const Op& op);
  // Like on the host, for any device.
  void complete_on_host(c10d::Work& work, const Op& op);
  void complete_all();
  // Returns when the device's current stream has done what it was given, or `check` throws.
  void await_stream(const Op& op, const std::function<void()>& check);
  // Ranks have called different collectives of a device, as every rank knows.
  [[noreturn]] void report_difference(const Op& op);

  void add(Pending& pending) { pending_.push_back(&pending); }
  void remove(Pending& pending) { std::erase(pending_, &pending); }

  // Number and rolling hash of all collectives so far. Equal on ranks that called the same ones.
  struct History {
    uint64_t seq = 0, hash = 14695981039346656037ULL;
  };
  const History& history() const { return history_; }

  void throw_if_failed() const;
  [[noreturn]] void fail(const Op& op, const std::string& what);
  void abort(std::string_view reason) noexcept;
  // Ends what is under way. NCCL: peers fail at once. Gloo has no such call: peers notice when this process ends.
  void end() noexcept;

 private:
  void poll(const std::function<bool()>& is_done, const Op& op);
  // Lets the program end the wait.
  void heed_interrupt(const Op& op);
  // The backend's own message rarely says why: adds what the other ranks called.
  [[noreturn]] void fail_explained(const Op& op, const std::string& message, bool waits);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Device device_;
  PeerWatch watch_;
  CommOptions options_;
  int rank_, world_size_;
  History history_;
  std::shared_ptr<Divergence> divergence_;  // may be shared by several communicators
  size_t number_;                           // this communicator's number in it
  std::shared_ptr<SharedFailure> failure_;
  std::atomic<bool> ended_ = false;  // see end()
  bool was_left_ = false;            // a collective was left before it was complete
  ProcessMark process_;
  std::vector<Pending*> pending_;
  std::unique_ptr<DeviceWatch::Watching> watching_;  // null: on the host, or alone
};

}  // namespace zeroshard
