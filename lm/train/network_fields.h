#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

// Returns the fields of a model's config.json that decide what the network computes with its parameters; null if there
// are none. Shapes are left out, because a checkpoint contains the shapes of its tensors. Throws IoError or ValueError.
nlohmann::json network_fields(const std::string& directory);

// Returns the differences between the fields that both have, as "num_attention_heads was 4 and is 2, ..."; empty if
// there are none.
std::string changed_fields(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace zeroshard
