#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

// Returns the fields of a model's config.json that decide what the network computes with its parameters. A missing
// field is null in the result. Fields that decide only the shapes of parameters are left out, because a checkpoint
// contains the shapes of its tensors. Throws IoError or ValueError.
nlohmann::json network_fields(const std::string& directory);

// Returns the differences between the values of fields that `before` and `now` both have, such as "num_attention_heads
// was 4 and is 2, ...", or "" if there are none.
std::string changed_fields(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace zeroshard
