#pragma once
#include <nlohmann/json.hpp>

#include "zeroshard/config.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Adds the values that must be the same on every rank of a run to `parsed`, so that the engine compares them together
// with the configuration. They are the options that decide what is computed and when ranks communicate, the fields of
// the model's config.json (`network`), and the tokens. Paths are left out, because each host may have its own.
// `validation` may be null.
ParsedConfig with_agreed_values(ParsedConfig parsed, const TrainOptions& options, const nlohmann::json& network,
                                const Dataset& training, const Dataset* validation);

}  // namespace zeroshard
