#pragma once

namespace zeroshard {

class Comm;

// The communicators of an engine whose states have several replicas. Groups of consecutive ranks shard a replica each.
struct ReplicaComms {
  Comm* all = nullptr;       // all ranks; null: there is one replica
  Comm* replicas = nullptr;  // the ranks that hold the same shard as this rank, in the order of their replicas
};

}  // namespace zeroshard
