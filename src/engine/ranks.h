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
  // `replication` is empty if there is one replica. In this case `reduce` has all ranks. `share_states` says whether
  // the replicas shard one copy of the optimizer states among themselves. Throws ValueError if the sizes of the
  // communicators do not match, or if `replication` has only one of its two communicators.
  Ranks(Comm& gather, Comm& reduce, Comm* checkpoint, const ReplicaComms& replication, c10::Device device,
        bool share_states = false);

  // Throws StateError in a forked child of the rank, and in a signal handler that runs while the engine waits. On a
  // device, throws CommError if this rank already knows that a communicator is broken.
  void check_caller() const;
  // Call it from time to time while this rank waits and others may wait for it. Throws if another rank has failed, or
  // if this rank was interrupted. After an interruption, makes the other ranks fail, too. `waited` says in the message
  // what this rank waited for, as "it waited for ...".
  void check_while_waiting(std::string_view waited) const;
  // Throws CommError on every rank if ranks have called different collectives on a device: see compare_histories() in
  // consensus.h. Collective. Does nothing on the CPU.
  void compare_histories(std::string_view tag) const;
  // Waits until the device has the reduced gradients. Throws CommError if the device waits for a rank that never comes.
  // Does nothing on the CPU.
  void await_gradients() const;
  // Makes all collectives of the engine, except those of checkpoint(), fail on every rank with the reason `text`. Call
  // it if this rank cannot go on.
  void fail_all(const std::string& text) const noexcept;
  // Throws StateError if there is no communicator for checkpoints.
  Comm& checkpoint() const;
  int num_replicas() const { return replicas != nullptr ? replicas->world_size() : 1; }
  // Returns the number of parts into which each shard is cut. Each part's states belong to one rank: see ShardLayout.
  int num_parts() const { return states.world_size() / gather.world_size(); }
  // Returns the part of this rank's elements `mine` that this rank saves. That is all of them, unless other replicas
  // also have the states of these elements. In that case each replica saves an equal part, and the last parts may be
  // shorter or empty.
  Range saved_part(Range mine) const;
  // Returns whether this rank is in the first replica of the optimizer states. Returns true if there is only one copy
  // of them.
  bool is_in_first_replica() const { return !has_replicas_of_states() || replicas->rank() == 0; }
  bool has_replicas_of_states() const { return replicas != nullptr && num_parts() == 1; }

  // Returns the communicator of all ranks that is used to send one rank's values of parameters to the others.
  Comm& values() const { return replicas != nullptr ? all : gather; }

  // `gather` and `reduce` connect the ranks of this replica, which shard one copy of the parameters among themselves.
  Comm& gather;
  Comm& reduce;
  Comm* checkpoint_or_null;  // all ranks
  Comm& all;                 // all ranks; `reduce` itself if there is one replica
  Comm& states;              // the ranks that shard one copy of the optimizer states: `all`, or `reduce`
  Comm* replicas;            // one rank of each replica, all with this rank's shard; null if there is one replica
  c10::Device device;
  ProcessMark process = {};
};

}  // namespace zeroshard
