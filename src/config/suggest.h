#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Returns the number of edits (insert, delete, replace, swap of neighbours) from one text to the other.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns " did you mean 'zero_optimization.stage'?" for the known path nearest to `path`, or "" if none is near. It
// compares the last parts of the paths, so that a key in the wrong block is found, too. It also compares words:
// "warmup_steps" is near "warmup_num_steps", and "learning_rate" near "lr".
std::string suggest_path(const std::string& path, const std::vector<std::string>& known);

// Returns "; did you mean 'plan'?" for the end of an error about `word`, or "".
std::string suggest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace zeroshard
