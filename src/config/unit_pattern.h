#pragma once
#include <string>

// Patterns that name units of a model: see PlacementRule::units.
namespace zeroshard {

// Whether the pattern, which has no problem, names the unit.
bool names_unit(const std::string& pattern, const std::string& unit);
// What is wrong with the pattern: "has an empty part"; "": nothing.
std::string problem_of_pattern(const std::string& pattern);

}  // namespace zeroshard
