#pragma once
#include <memory>
#include <vector>

#include "engine/engine_plan.h"
#include "engine/executor.h"
#include "engine/memory.h"
#include "engine/ranks.h"
#include "reduce/reducer.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// These functions make the executor and the reducer of an engine. Both are collective. `plan`, `ranks` and `memory`
// must outlive the result.

// Makes the units one after another, and on a device also their groups. Each unit takes its values from
// UnitDefinition::values if it is set, and else from the model's tensors. The memory of the model's tensors is then
// freed, and goes back to the system if it is on the host. Adds the slots of the gather ring. Sets
// callbacks.max_over_ranks if some unit is kSharded. Throws StateError if another engine has one of the parameters.
std::unique_ptr<Executor> make_executor(const std::vector<UnitDefinition>& definitions, const EnginePlan& plan,
                                        const Ranks& ranks, Memory& memory, Executor::Callbacks callbacks);
std::unique_ptr<Reducer> make_reducer(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
                                      const Memory& memory);

}  // namespace zeroshard
