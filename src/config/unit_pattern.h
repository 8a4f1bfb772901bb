#pragma once
#include <string>

// Patterns that name units of a model, as in PlacementRule::units. The parts of a pattern are separated by dots. A part
// is a text, a range of numbers like "0-3", or "*" for any part.
namespace zeroshard {

// Returns whether the parts of `pattern` fit the last parts of the name `unit`. The pattern must be valid.
bool names_unit(const std::string& pattern, const std::string& unit);
// Returns what is wrong with the pattern ("has an empty part"), or "" if it is valid.
std::string problem_of_pattern(const std::string& pattern);

}  // namespace zeroshard
