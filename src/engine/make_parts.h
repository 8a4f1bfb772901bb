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

// Makes the units one after another. Each unit takes its values from the model's tensors, whose memory is then freed.
// Freed host memory goes back to the system. Sets callbacks.max_over_ranks if some unit is kSharded.
std::unique_ptr<Executor> make_executor(const std::vector<UnitDefinition>& definitions, const EnginePlan& plan,
                                        const Ranks& ranks, Memory& memory, Executor::Callbacks callbacks);
std::unique_ptr<Reducer> make_reducer(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks,
                                      const Memory& memory);

}  // namespace zeroshard
