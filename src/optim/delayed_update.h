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

// Updates optimizer states on the host by a thread of its own, while the device computes the next step with the
// parameters that it has. publish() brings the new ones there one step late: "one-step delayed parameter update" of
// ZeRO-Offload (Ren et al., 2021, arXiv:2101.06840, section 5.2).
//
// From begin() on until the end of await() states belong to the thread. New parameters wait in pinned memory of the
// host, which has one place for each parameter that this rank updates.
class DelayedUpdate {
 public:
  // All states of `groups`, which are numbered from 0 on, are on the host or in files, their parameters on the
  // device, and their gradients on the host. All outlive this. With `pin` the device copies by itself.
  // `while_waiting` is called by await(), some ten times a second; an exception of it ends the wait.
  DelayedUpdate(std::span<ShardedGroup* const> groups, const ShardedOptimizer& optimizer, at::Device device, bool pin,
                Ledger& ledger, std::function<void()> while_waiting);
  DelayedUpdate(const DelayedUpdate&) = delete;
  DelayedUpdate& operator=(const DelayedUpdate&) = delete;
  // Groups that the thread has not begun are not updated.
  ~DelayedUpdate() { ends_ = true; }

  // What a step updates.
  struct Step {
    struct Part {
      ShardedGroup* group;
      at::Tensor grads;            // on the host, of the elements that this rank updates
      WriteHold::Reading reading;  // of these: it ends when the thread has used them
      std::vector<bool> has_grad;  // by parameter
    };
    std::vector<Part> parts;  // in the order in which the next gradients come
    std::vector<ParamGroupOptions> options;
    float grad_scale = 1;  // see ShardedOptimizer::update()
  };
  // Nothing may be pending. Counts the step for each parameter, and lets the thread do the rest.
  void begin(Step step);
  bool is_on_thread() const { return thread_id_ == std::this_thread::get_id(); }
  // Returns when the thread has nothing to do. Throws what an update has thrown, each time.
  void await() { thread_.wait(while_waiting_); }
  // Whether there are updates that are not published.
  bool is_pending() const { return is_pending_; }

  // After await(): gives the device copies of new parameters of the group, if there are any, for which nobody waits
  // here: see ShardedGroup::await_copies().
  void publish(ShardedGroup& group);
  // All have been published.
  void end() { is_pending_ = false; }
  // After await(): `values`, 1-D over `positions` of the group, take the place of new parameters there.
  void replace(const ShardedGroup& group, Range positions, const at::Tensor& values);

 private:
  using Run = ShardedOptimizer::Run;
  struct Pending {
    at::Tensor values;               // of the elements that this rank updates, in the dtype of the parameters
    std::vector<Run> runs;           // of these, what is to be published
    std::optional<c10::Event> sent;  // to the device
  };
  void run(Step& step);

  const ShardedOptimizer& optimizer_;
  FlatBuffer memory_;
  std::vector<Pending> pending_;  // by group
  bool is_pending_ = false;
  Mover mover_;
  std::function<void()> while_waiting_;
  std::atomic<bool> ends_ = false;
  std::atomic<std::thread::id> thread_id_;
  Background thread_;  // the last member: it uses the others
};

}  // namespace zeroshard
