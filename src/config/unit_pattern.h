#pragma once
#include <string>

// Patterns that name units of a model, as in PlacementRule::units.
namespace zeroshard {

// Returns whether `pattern` names `unit`. The pattern must be valid.
bool names_unit(const std::string& pattern, const std::string& unit);
// Returns what is wrong with the pattern ("has an empty part"), or "" if it is valid.
std::string problem_of_pattern(const std::string& pattern);

}  // namespace zeroshard
