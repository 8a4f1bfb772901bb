#pragma once
#include <string>

// Patterns that name units of a model: see PlacementRule::units.
namespace zeroshard {

// Returns whether the pattern, which must be valid, matches the unit.
bool names_unit(const std::string& pattern, const std::string& unit);
// Returns the problem of the pattern ("has an empty part"), or "" if it is valid.
std::string problem_of_pattern(const std::string& pattern);

}  // namespace zeroshard
