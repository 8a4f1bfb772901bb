#pragma once

namespace zeroshard {

class Comm;

// The communicators of an engine whose parameters have several replicas. Each replica is sharded over a group of
// consecutive ranks.
struct ReplicaComms {
  Comm* all = nullptr;       // all ranks; null: there is one replica
  Comm* replicas = nullptr;  // the ranks that hold the same shard as this rank, in the order of their replicas
};

}  // namespace zeroshard
