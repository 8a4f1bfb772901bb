#pragma once
#include <nlohmann/json.hpp>

#include "zeroshard/config.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Returns `parsed` with more values in parsed.values, which must be the same on every rank of a run. The engine
// compares them among the ranks together with the configuration. The added values are the options that decide what is
// computed and when ranks communicate, the fields in `network` (see network_fields()), and the numbers and digests of
// the tokens. Paths are not among the added values, because each host may have its own. `validation` may be null.
ParsedConfig with_agreed_values(ParsedConfig parsed, const TrainOptions& options, const nlohmann::json& network,
                                const Dataset& training, const Dataset* validation);

}  // namespace zeroshard
