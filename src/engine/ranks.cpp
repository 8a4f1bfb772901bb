#include "engine/ranks.h"

#include <algorithm>
#include <array>

#include "base/align.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "engine/consensus.h"
#include "zeroshard/error.h"

namespace zeroshard {

Ranks::Ranks(Comm& gather_comm, Comm& reduce_comm, Comm* checkpoint, const ReplicaComms& replication,
             c10::Device on_device, bool share_states)
    : gather(gather_comm),
      reduce(reduce_comm),
      checkpoint_or_null(checkpoint),
      all(replication.all != nullptr ? *replication.all : reduce_comm),
      states(share_states ? all : reduce_comm),
      replicas(replication.replicas),
      device(on_device) {
  ZS_CHECK((replicas == nullptr) == (replication.all == nullptr), "one of the communicators of replicas is null");
  ZS_CHECK(gather.world_size() * num_replicas() == all.world_size(), num_replicas(), " replicas of ",
           gather.world_size(), " rank(s) each are not ", all.world_size(), " ranks");
}

Range Ranks::saved_part(Range mine) const {
  if (!has_replicas_of_states()) return mine;
  const int64_t part = ceil_div(mine.size(), replicas->world_size()), begin = mine.begin + part * replicas->rank();
  return {std::min(begin, mine.end), std::min(begin + part, mine.end)};
}

void Ranks::check_caller() const {
  if (!process.is_own()) throw StateError(process.refusal(all.rank(), "engine"));
  if (in_interrupt_check())
    throw StateError(
        "a signal handler called the engine while the engine waits for other ranks or for a checkpoint. Let the "
        "handler only set a flag or call request_stop(), and act on the signal between steps");
  if (device.is_cpu()) return;
  gather.check();  // the thread that watches the device may have noticed that a rank is gone
  reduce.check();
  all.check();
}

void Ranks::check_while_waiting(std::string_view waited) const {
  all.check();  // another rank may have failed
  try {
    check_interrupt();
  } catch (const std::exception&) {  // the other ranks wait for this one, so they must fail, too
    fail_all(concat("rank ", all.rank(), " was interrupted while ", waited));
    throw;
  }
}

void Ranks::compare_histories(std::string_view tag) const {
  const std::array<Comm*, 2> own = {&reduce, &gather};
  zeroshard::compare_histories(own, tag);
  const std::array<Comm*, 1> across = {replicas};
  if (replicas != nullptr) zeroshard::compare_histories(across, tag);
}

void Ranks::await_gradients() const {
  constexpr std::string_view kTag = "gradients of the step";
  reduce.await_device(kTag);
  if (replicas != nullptr) replicas->await_device(kTag);
}

void Ranks::fail_all(const std::string& text) const noexcept {
  all.abort(text);
  reduce.abort(text);
  gather.abort(text);
  if (replicas != nullptr) replicas->abort(text);
}

Comm& Ranks::checkpoint() const {
  if (checkpoint_or_null == nullptr) throw StateError("this engine was made without a communicator for checkpoints");
  return *checkpoint_or_null;
}

}  // namespace zeroshard
