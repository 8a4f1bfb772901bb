#pragma once
#include <string>

// Patterns that name units of a model: see PlacementRule::units.
namespace zeroshard {

// Whether the pattern, which must be valid, matches the unit.
bool names_unit(const std::string& pattern, const std::string& unit);
// What is wrong with the pattern: "has an empty part"; "": it is valid.
std::string problem_of_pattern(const std::string& pattern);

}  // namespace zeroshard
