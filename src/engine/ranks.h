#pragma once
#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "base/process_mark.h"
#include "comm/comm.h"
#include "layout/shard_layout.h"
#include "zeroshard/replica_comms.h"

namespace zeroshard {

// The communicators of an engine, which outlive it, and the process that may use them.
struct Ranks {
  // `replication` is empty if there is one replica. Then `reduce` also serves all ranks. `share_states` says whether
  // replicas of the parameters shard one copy of the optimizer states among themselves.
  Ranks(Comm& gather, Comm& reduce, Comm* checkpoint, const ReplicaComms& replication, c10::Device device,
        bool share_states = false);

  // Throws StateError in a forked child of the rank, and in a signal handler that runs while the engine waits.
  void check_caller() const;
  // Call it from time to time while this rank waits and others may wait for it. Throws if another rank has failed, or
  // if this one was interrupted; then the others fail, too. `waited` says what for: "it waited for ...".
  void check_while_waiting(std::string_view waited) const;
  // Only on devices: throws CommError on every rank if ranks have called different collectives. It must run before
  // anybody waits for the device, because such collectives may never end or may have mixed the ranks' data. Collective.
  void compare_histories(std::string_view tag) const;
  // Waits until the device has the reduced gradients. Throws CommError if the device waits for a rank that never comes.
  void await_gradients() const;
  // Makes all collectives of the engine fail on every rank with the reason `text`, because this rank cannot go on.
  void fail_all(const std::string& text) const noexcept;
  // Throws StateError if there is no communicator for checkpoints.
  Comm& checkpoint() const;
  int num_replicas() const { return replicas != nullptr ? replicas->world_size() : 1; }
  // Returns the number of parts into which each shard is cut. Each part's states belong to one rank: see ShardLayout.
  int num_parts() const { return states.world_size() / gather.world_size(); }
  // Returns the part of this rank's elements `mine` that this rank saves. If other replicas have the states of these
  // elements, too, they save the other parts.
  Range saved_part(Range mine) const;
  // Returns whether this rank is in the first replica of the states.
  bool is_in_first_replica() const { return !has_replicas_of_states() || replicas->rank() == 0; }
  bool has_replicas_of_states() const { return replicas != nullptr && num_parts() == 1; }

  // Returns the communicator by which one rank gives its values of parameters to all ranks.
  Comm& values() const { return replicas != nullptr ? all : gather; }

  // `gather` and `reduce` connect the ranks of this replica, which shard one copy of the parameters among themselves.
  Comm& gather;
  Comm& reduce;
  Comm* checkpoint_or_null;  // all ranks
  Comm& all;                 // all ranks
  Comm& states;              // the ranks that shard one copy of the optimizer states: all, or those of this replica
  Comm* replicas;            // one rank of each replica, all with this rank's shard; null if there is one replica
  c10::Device device;
  ProcessMark process = {};
};

}  // namespace zeroshard
