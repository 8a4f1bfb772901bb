#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_plan.h"
#include "engine/executor.h"
#include "engine/memory.h"
#include "engine/pass.h"
#include "engine/ranks.h"
#include "engine/saves.h"
#include "engine/step.h"
#include "engine/update.h"
#include "engine/user_writes.h"
#include "optim/sharded_optimizer.h"
#include "reduce/reducer.h"
#include "zeroshard/engine.h"
#include "zeroshard/error.h"

namespace zeroshard {

// The parts of an engine. They are destroyed in reverse order of declaration. engine_build.cpp builds them.
struct Engine::Impl {
  Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce, Comm* checkpoint,
       const ReplicaComms& replication);

  const GradBucket& bucket_of(const ShardedGroup& group) const { return reducer->buckets()[group.number()]; }
  // Throws StateError after retire(), and the errors of Ranks::check_caller(). A method that uses a part that retire()
  // frees must call check_in_use() or check_whole() first.
  void check_in_use() const;
  // Throws like check_in_use(). Also throws StateError after a load that failed half way and left a mixture of two
  // states.
  void check_whole() const;
  void publish_outside_of_steps();
  // Publishes a pending update before a load. This overwrites what users have written to parameters since the last
  // step. If `has_gradients` is true on some rank, publishes nothing, because the load will be refused. Collective if
  // an update is pending.
  void publish_before_load(bool has_gradients);
  // Returns the group of the trained parameter with this first name, and the parameter's index in the group. Throws
  // ValueError if no trained parameter has this name.
  std::pair<ShardedGroup*, size_t> find_trained(const std::string& name) const;
  // Waits for a running save. Frees what only training needs: optimizer states, gradients, hooks, updates and saves.
  // After that, the engine can only return units. Does nothing if it was called before.
  void retire();
  bool in_use() const { return reducer != nullptr; }  // false after retire()

  EngineOptions options;
  Ranks ranks;
  EnginePlan plan;
  std::unique_ptr<Memory> memory;
  ShardedOptimizer optimizer;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<Pass> pass;
  std::unique_ptr<UserWrites> writes;
  std::unique_ptr<Update> update;
  std::unique_ptr<Step> step;
  std::unique_ptr<Saves> saves;
};

}  // namespace zeroshard
