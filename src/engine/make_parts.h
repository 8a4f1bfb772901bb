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

// These functions make the executor and the reducer of an engine, to which its other parts refer. The arguments must
// outlive the result. Collective.

// The units take their values from the model, and free the memory that the model gives up. `callbacks` need not have
// max_over_ranks, which the function sets.
std::unique_ptr<Executor> make_executor(const std::vector<UnitDefinition>& definitions, const EnginePlan& plan,
                                        const Ranks& ranks, Memory& memory, Executor::Callbacks callbacks);
std::unique_ptr<Reducer> make_reducer(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
                                      const Memory& memory);

}  // namespace zeroshard
