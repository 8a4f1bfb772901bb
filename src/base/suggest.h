#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Returns the smallest number of edits that turn one text into the other. An edit inserts, deletes or replaces a
// character, or swaps two neighbours.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns " did you mean 'zero_optimization.stage'?" with the known path nearest to `path`, or "" if none is near. Here
// "stage" is the last part of the path, and "zero_optimization" is its block.
//
// If `path` has a block, but its last part is a known top-level key, returns instead a text that says that the key
// belongs at the top level. Returns "" for a `path` of more than 100 characters.
//
// A known path is near if its distance from `path` is at most n. n is a third of the number of characters in the last
// part of `path`, but at least 1 and at most 4. The distance is the number of edits between the paths or, if that is
// less, the distance between their last parts, plus 1 if the blocks differ. The distance between last parts is the
// number of edits or, if that is less, a distance by words. By words, "warmup_steps" is near "warmup_num_steps", and
// "learning_rate" is near "lr".
std::string suggest_path(const std::string& path, const std::vector<std::string>& known);

// Returns the end of an error about `word`, such as "; did you mean 'plan'?". Returns "" if no known word is near, or
// if `word` is a number.
std::string suggest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace zeroshard
