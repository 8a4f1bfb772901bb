#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

// The fields of a model's config.json that decide what the network computes with the parameters that it has, null where
// there are none. Shapes are not among them: a checkpoint has its own. Throws IoError or ValueError.
nlohmann::json network_fields(const std::string& directory);

// "num_attention_heads was 4 and is 2, ...": what differs of the fields that both have; an empty text if nothing does.
std::string changed_fields(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace zeroshard
