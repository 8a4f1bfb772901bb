#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/write_hold.h"
#include "device/flat_buffer.h"
#include "device/mover.h"
#include "file/background.h"
#include "optim/sharded_optimizer.h"

namespace zeroshard {

// Updates optimizer states on the host in a thread of its own, while the device computes the next step with the
// previous parameters. copy_to_device() copies the new parameters to the device one step late. This is the "one-step
// delayed parameter update" of ZeRO-Offload (Ren et al., 2021, arXiv:2101.06840, section 5.2).
//
// The thread owns the states from begin() until await() returns. New parameters stay in host memory until
// copy_to_device(). This memory has room for every parameter that this rank updates.
class DelayedUpdate {
 public:
  // groups[i] must have the number() i. Their states must be on the host or in files, their parameters on the device,
  // and their gradients on the host. The groups, `optimizer` and `ledger` must outlive this object. If `pin` is true,
  // the memory of new parameters is pinned, so that the device copies it without the host. await() calls
  // `while_waiting` about ten times a second. An exception from `while_waiting` passes through await(), and the update
  // continues.
  DelayedUpdate(std::span<ShardedGroup* const> groups, const ShardedOptimizer& optimizer, at::Device device, bool pin,
                Ledger& ledger, std::function<void()> while_waiting);
  DelayedUpdate(const DelayedUpdate&) = delete;
  DelayedUpdate& operator=(const DelayedUpdate&) = delete;
  // Waits until the thread has updated its current group. Later groups are not updated.
  ~DelayedUpdate() { ends_ = true; }

  // The groups and gradients of one update.
  struct Inputs {
    struct Part {
      ShardedGroup* group;
      at::Tensor grads;            // on the host, for the elements that this rank updates
      WriteHold::Reading reading;  // a hold on `grads`, which ends when the thread has used them
      std::vector<bool> has_grad;  // for each parameter
    };
    std::vector<Part> parts;  // in the order in which gradients of the next step become ready
    std::vector<ParamGroupOptions> options;
    float grad_scale = 1;  // as in ShardedOptimizer::update()
  };
  // Starts an update. end() must have been called for the previous update. Counts the steps of the parameters on the
  // calling thread, and updates the states on the object's thread. If the system refuses to start that thread, updates
  // the states before it returns.
  void begin(Inputs inputs);
  bool is_on_thread() const { return thread_id_ == std::this_thread::get_id(); }
  // Waits until the thread is idle. If an update threw an exception, this call and all later ones throw it.
  void await() { thread_.wait(while_waiting_); }
  // Returns whether an update has begun for which end() was not called yet.
  bool is_pending() const { return is_pending_; }

  // Starts to copy the group's new parameters to the device, if there are any. await() must have returned. Does not
  // wait for the copies (see ShardedGroup::await_copies()).
  void copy_to_device(ShardedGroup& group);
  // Says that the update is published. Call it after copy_to_device() for all groups.
  void end() { is_pending_ = false; }
  // Puts `values`, a 1-D tensor for the `positions` of the group, in the place of new parameters that wait for
  // copy_to_device(). Skips positions that this rank does not update. await() must have returned.
  void replace(const ShardedGroup& group, Range positions, const at::Tensor& values);

 private:
  using Run = ShardedOptimizer::Run;
  struct Pending {
    at::Tensor values;      // the new parameters of the elements that this rank updates, in the dtype of the parameters
    std::vector<Run> runs;  // the parts of `values` that were updated, but not published
    std::optional<c10::Event> sent;  // recorded after the last copy to the device
  };
  void run(Inputs& inputs);

  const ShardedOptimizer& optimizer_;
  FlatBuffer memory_;
  std::vector<Pending> pending_;  // for each group
  bool is_pending_ = false;
  Mover mover_;
  std::function<void()> while_waiting_;
  std::atomic<bool> ends_ = false;
  std::atomic<std::thread::id> thread_id_;
  Background thread_;  // the last member, because the thread uses the others
};

}  // namespace zeroshard
