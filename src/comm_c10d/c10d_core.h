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

// Numbers the collectives of a C10dComm, waits for them, and turns their errors into CommError. The communicator shares
// the core with its Works and allocations, which can be destroyed after the communicator.
class C10dCore {
 public:
  // A collective that was started and not waited for yet. It might still read its input.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait_pending() = 0;
  };

  // The communicators that one thread uses for the same ranks should share a `divergence`. If it is null, this
  // communicator has its own.
  C10dCore(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device, PeerWatch watch, const CommOptions& options,
           std::shared_ptr<Divergence> divergence = nullptr);
  ~C10dCore();
  C10dCore(const C10dCore&) = delete;
  C10dCore& operator=(const C10dCore&) = delete;

  c10d::ProcessGroup& group() { return *group_; }
  at::Device device() const { return device_; }
  int rank() const { return group_ ? group_->getRank() : 0; }
  int world_size() const { return group_ ? group_->getSize() : 1; }
  // Returns the number by which error messages name `rank`.
  int number_of(int rank) const { return options_.numbers.of(rank); }
  // Returns whether this process is a forked child of the rank. A child must not destroy the process group and the
  // watch, because their destructors end the parent's connections and join threads that the child does not have.
  bool is_forked() const { return !process_.is_own(); }
  // Returns whether this communicator, or another one that shares its CommOptions::failure, has failed.
  bool failed() const { return failure_->happened(); }
  SharedFailure& failure() { return *failure_; }
  // Lets the DeviceWatch of the options, or a new one, watch the collectives on the device until unwatch(). `why_host`
  // becomes WatchedComm::why_host.
  void watch(std::function<std::string()> why_host);
  void unwatch() { watching_.reset(); }
  // Drops the watch without destroying it. A forked child calls this function instead of unwatch(), because the child
  // has no copy of the thread that the watch's destructor waits for.
  void abandon_watch() { static_cast<void>(watching_.release()); }

  // See Comm::still_writes.
  bool still_writes() const { return failed() || was_left_; }
  // Says that nobody will wait for `work` any more. Unless `work` is known to have ended without an error,
  // still_writes() returns true from now on.
  void leave(c10d::Work& work) noexcept;

  // Gives `op` the next sequence number, calls `start`, which starts the collective, and returns the Work of `start`.
  // Also tells the Divergence and the watch about `op`. Throws CommError if the communicator has failed, or if `start`
  // throws.
  c10::intrusive_ptr<c10d::Work> issue(Op& op, const std::function<c10::intrusive_ptr<c10d::Work>()>& start);
  // On a device, makes the current stream wait for `work`. On the CPU, returns when `work` is done. This relies on
  // work.isCompleted(), which is wrong in some wrappers of backends.
  void complete(c10d::Work& work, const Op& op);
  // Blocks the host until `work` is done, also on a device.
  void complete_on_host(c10d::Work& work, const Op& op);
  void complete_all();
  // Returns when the work that is queued on the device's current stream is done. Calls `check` again and again until
  // then, and throws what `check` throws. Error messages name the wait by `op`.
  void await_stream(const Op& op, const std::function<void()>& check);
  // Must be called when every rank knows that ranks have called different collectives on a device. Throws CommError,
  // which names the first difference if the Divergence finds it.
  [[noreturn]] void report_difference(const Op& op);

  void add(Pending& pending) { pending_.push_back(&pending); }
  void remove(Pending& pending) { std::erase(pending_, &pending); }

  // The number of collectives so far, and a rolling hash of these collectives. Ranks that called the same collectives
  // have equal histories.
  struct History {
    uint64_t seq = 0, hash = 14695981039346656037ULL;
  };
  const History& history() const { return history_; }

  void throw_if_failed() const;
  [[noreturn]] void fail(const Op& op, const std::string& what);
  void abort(std::string_view reason) noexcept;
  // Aborts the running collectives of the process group. With NCCL, the collectives of peers then fail immediately.
  // Gloo cannot tell peers, so they notice the abort when this process ends. Only the first call has an effect. On a
  // device, the call waits for the abort for at most half a second. If this process cannot start a thread for the
  // abort, the call waits until the abort is done.
  void end() noexcept;

 private:
  void poll(const std::function<bool()>& is_done, const Op& op);
  // Lets the program interrupt the wait in `op`. If the program does so, aborts the communicator and throws the
  // program's exception.
  void heed_interrupt(const Op& op);
  // Throws CommError with `message`. The message is usually a text of the backend, which rarely explains the failure.
  // So the function first looks whether ranks have called different collectives, and whether a peer has died or was
  // stopped. It puts what it finds before `message`. `waits` says whether this rank's thread has waited in `op`.
  [[noreturn]] void fail_explained(const Op& op, const std::string& message, bool waits);

  struct Compared {
    std::shared_ptr<Divergence> divergence;  // several communicators can share it
    size_t number;                           // index of this communicator in `divergence`
  };

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Device device_;
  PeerWatch watch_;
  CommOptions options_;
  History history_;
  Compared compared_;
  std::shared_ptr<SharedFailure> failure_;
  std::atomic<bool> ended_ = false;  // whether end() was called
  bool was_left_ = false;            // whether a collective was abandoned before it was complete
  ProcessMark process_;
  std::vector<Pending*> pending_;
  std::unique_ptr<DeviceWatch::Watching> watching_;  // null on the host, and in a world of one rank
};

}  // namespace zeroshard
